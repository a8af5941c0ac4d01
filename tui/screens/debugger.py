"""The trace, one moment at a time: panes show a scene, messages and keys change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Footer, Static

from ...recorder.errors import KvrewindError
from ...recorder.follow import End
from ...replay.history import allocations_of_block
from ...replay.provenance import chain
from ...replay.verdict import Report
from ..messages import (
    BlockExplained,
    BlockPicked,
    Folding,
    OverviewRead,
    RequestPicked,
    Seek,
    StateFolded,
    TraceChecked,
    TraceCut,
    TraceGrew,
    TraceUnreadable,
)
from ..presenters.chain import chain_rows, history_rows
from ..presenters.header import Standing, header_line
from ..presenters.legend import grid_legend, steps_legend
from ..presenters.spans import Row, Span
from ..presenters.tables import request_order
from ..session import Session
from ..trials import Rerun
from ..widgets.block_grid import BlockGrid
from ..widgets.event_list import EventList
from ..widgets.finding_list import FindingList
from ..widgets.inspector import Inspector
from ..widgets.request_list import RequestList
from ..widgets.step_strip import StepStrip
from ..widgets.styles import markup_of, text_of
from ..widgets.table_list import TableList
from .goto import GotoScreen
from .help import HelpScreen
from .reading import ReadingScreen
from .rerun import RerunScreen

EXPLAIN_AFTER_S = 0.08
"""How long to stand on an event before its chain and its block's life are looked up."""


ENDS: dict[End, str] = {
    "ended": "The run ended; this is all of it.",
    "abandoned": "Nobody writes this trace any more, and the run did not end.",
    "silent": "Nothing is added to this trace any more.",
    "damaged": "What comes next in this trace can't be trusted.",
    "removed": "The file was removed; what was read of it can still be seen.",
    "replaced": "Another file has its name now; leave, and open that one.",
}
"""How a trace that was live came to its end."""


class DebuggerScreen(ReadingScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right", "event(1)", "event", key_display="n/p"),
        Binding("p,left", "event(-1)", "Previous event", show=False),
        Binding("N,right_square_bracket", "step(1)", "step", key_display="N/P"),
        Binding("P,left_square_bracket", "step(-1)", "Previous step", show=False),
        Binding("home", "first", "First event", show=False),
        Binding("end", "last", "Last event", show=False),
        Binding("f", "finding", "finding"),
        Binding("c", "culprit", "culprit"),
        Binding("b", "back", "Back", show=False),
        Binding("g", "goto", "go"),
        Binding("F", "follow", "Follow", show=False),
        Binding("full_stop", "request(1)", "Next request", show=False),
        Binding("comma", "request(-1)", "Previous request", show=False),
        Binding("escape", "unpick", "Let go", show=False),
        Binding("z", "zoom", "zoom", show=False),
        Binding("r", "rerun", "re-execute"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, session: Session, title: str, position: str | None, rerun: Rerun) -> None:
        super().__init__(session)
        self._title = title
        self._position = position
        self._rerun = rerun
        self._explain_timer: Timer | None = None
        self._has_moved = position is not None
        """Else the first culprit is opened as soon as it is known."""
        self._roots_told = 0

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield StepStrip(id="steps")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield BlockGrid(id="blocks")
                yield Static(id="legend")
                yield RequestList(id="requests")
                yield TableList(id="table")
            with Vertical(id="right"):
                yield EventList(self.session.tape, id="events")
                yield Inspector(id="inspector")
        yield FindingList(self.session.tape, id="findings")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        strip = self.query_one(StepStrip)
        strip.border_title = markup_of((Span("steps · "), *steps_legend()))
        self.query_one(EventList).focus()
        self._go(self._first_place())
        self.read_trace()

    def _first_place(self) -> int:
        session = self.session
        if self._position:
            return session.timeline.position(self._position)
        if session.is_live:
            self._has_moved = session.is_following = True
            return session.last_seq
        return session.tape.first_seq

    # --- moving -----------------------------------------------------------------------------------

    def _go(self, seq: int | None, *, remember: bool = False) -> None:
        if seq is None:
            return
        try:
            is_there = self.session.go(seq, remember=remember)
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))
            is_there = True
        if not is_there:
            self.fold(seq)
        self._show()

    def _move(self, seq: int | None, *, remember: bool = False) -> None:
        """The person went somewhere, if there is somewhere to go."""
        session, self._has_moved = self.session, True
        there = session.seq if seq is None else seq
        session.is_following = session.is_live and there == session.last_seq
        if there != session.seq:
            self._go(there, remember=remember)
        else:
            self._show_head()

    def _jump(self, seq: int | None) -> None:
        self._move(seq, remember=True)

    def _asked(self, where: Callable[[], int | None]) -> int | None:
        """The answer of the trace; None, and a word about it, if it can't be read."""
        try:
            return where()
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))
            return None

    def action_event(self, by: int) -> None:
        tape, seq = self.session.tape, self.session.seq
        self._move(tape.next(seq) if by > 0 else tape.previous(seq))

    def action_step(self, by: int) -> None:
        timeline, seq = self.session.timeline, self.session.seq
        move = timeline.next_step if by > 0 else timeline.previous_step
        self._move(self._asked(lambda: move(seq)))

    def action_first(self) -> None:
        self._jump(self.session.tape.next(-1))

    def action_last(self) -> None:
        self._jump(self.session.last_seq)

    def action_follow(self) -> None:
        session = self.session
        if not session.is_live:
            self.notify("Nothing is added to this trace any more.")
        elif session.is_following:
            session.is_following = False
            self._show_head()
        else:
            self._jump(session.last_seq)

    def action_finding(self) -> None:
        self._jump_or_say(self.session.next_finding())

    def action_culprit(self) -> None:
        self._jump_or_say(self.session.culprit())

    def action_back(self) -> None:
        self._move(self.session.back())

    def _jump_or_say(self, seq: int | None) -> None:
        if seq is None:
            known = self.session.report is not None
            self.notify("No finding in this trace." if known else "Still checking the trace.")
        self._jump(seq)

    def action_goto(self) -> None:
        here = self.session.envelope.position
        self.app.push_screen(GotoScreen(self.session.timeline, here), self._jump)

    def on_seek(self, message: Seek) -> None:
        self._jump(message.seq)

    # --- looking ----------------------------------------------------------------------------------

    def on_block_picked(self, message: BlockPicked) -> None:
        self.session.picked_block = message.block
        self._show()

    def on_request_picked(self, message: RequestPicked) -> None:
        self.session.picked_request = message.request
        self._show()

    def action_request(self, by: int) -> None:
        state = self.session.state
        order = request_order(state) if state else []
        if order:
            here = self.session.request
            index = order.index(here) + by if here in order else 0
            self.session.picked_request = order[index % len(order)]
            self._show()

    def action_unpick(self) -> None:
        if self.maximized is not None:
            self.minimize()
        self.session.unpick()
        self._show()

    def action_zoom(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused)

    def action_rerun(self) -> None:
        self.app.push_screen(RerunScreen(self._rerun))

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen())

    # --- showing ----------------------------------------------------------------------------------

    def _show(self) -> None:
        scene = self.session.scene()
        self._show_head()
        self.query_one(StepStrip).show(self.session.overview, scene)
        for pane in (BlockGrid, RequestList, TableList, EventList, Inspector, FindingList):
            self.query_one(pane).show(scene)
        legend = text_of([grid_legend(scene.request)])
        self.query_one("#legend", Static).update(legend, layout=False)
        self._explain_soon()

    def _show_head(self) -> None:
        head = header_line(
            self._title,
            self.session.header,
            self.session.report,
            self.session.problems,
            self.session.envelope.position,
            self.size.width,
            self._standing,
        )
        self.query_one("#head", Static).update(text_of([head]), layout=False)

    @property
    def _standing(self) -> Standing:
        if not self.session.is_live:
            return "ended"
        return "followed" if self.session.is_following else "live"

    def on_resize(self) -> None:
        self._show_head()

    # --- what workers bring -----------------------------------------------------------------------

    def on_state_folded(self, message: StateFolded) -> None:
        session = self.session
        if not session.take_state(message.seq, message.state):
            return
        if not session.is_following:
            self._show()
            return
        # the trace may have grown while it was folded, to its end even
        session.is_following = session.is_live
        self._go(session.last_seq)

    def on_trace_cut(self, message: TraceCut) -> None:
        self.session.reopen()
        self.session.is_live = self.session.is_following = False
        self.query_one(EventList).tape = self.query_one(FindingList).tape = self.session.tape
        self._go(self.session.seq)
        self.read_trace()

    def on_overview_read(self, message: OverviewRead) -> None:
        self.session.take_overview(message.overview)
        self._show()

    def on_trace_grew(self, message: TraceGrew) -> None:
        session = self.session
        session.take_overview(message.overview)
        where = session.grow(message.last_seq)
        if message.end is not None:
            self._came_to_its_end(message.end)
        if where is None:
            self._show()
        else:
            self._go(where)

    def _came_to_its_end(self, end: End) -> None:
        """What it is in the end is known when all of it was judged."""
        session = self.session
        session.is_live = False
        session.is_following &= session.state is None  # who follows still comes to the end
        session.report = None
        self.notify(ENDS[end], severity="information" if end == "ended" else "warning")

    def on_trace_checked(self, message: TraceChecked) -> None:
        session, is_live = self.session, self.session.is_live
        session.take_report(message.report, message.problems)
        findings = self.query_one(FindingList)
        findings.take(message.report, message.problems, is_live=is_live)
        self._tell_new_roots(message.report)
        if self._has_moved:
            self._show()
        else:
            culprit = self.session.culprit()
            self._go(self.session.seq if culprit is None else culprit)

    def _tell_new_roots(self, report: Report) -> None:
        """A person who follows sees where findings are made only if they are told."""
        roots = report.roots
        if self.session.is_live and len(roots) > self._roots_told:
            newest = max(roots, key=lambda root: root.seq)
            self.notify(f"{newest.check} at {newest.position}: f goes there", severity="warning")
        self._roots_told = len(roots)

    def on_trace_unreadable(self, message: TraceUnreadable) -> None:
        self.notify(message.why, severity="error", timeout=30)

    def on_folding(self, message: Folding) -> None:
        self.session.folded_until = message.reached

    # --- explaining -------------------------------------------------------------------------------

    def _explain_soon(self) -> None:
        """Not while a key is held down: looking up costs more than a step."""
        if self._explain_timer is not None:
            self._explain_timer.stop()
        scene = self.session.scene()
        if scene.state is not None and (scene.block is not None or scene.blame.at(scene.seq)):
            self._explain_timer = self.set_timer(EXPLAIN_AFTER_S, self._explain)

    @work(thread=True, exclusive=True, group="explain")
    def _explain(self) -> None:
        scene, session = self.session.scene(), self.session
        harm = scene.blame.harm_at(scene.seq)
        links: Sequence[Row] = ()
        history: Sequence[Row] = ()
        try:
            if harm is not None:
                found = chain(session.timeline, harm, session.root_of(harm))
                links = chain_rows(found, scene.names)
            if scene.block is not None:
                life = allocations_of_block(session.source, scene.block)
                history = history_rows(life, scene.seq, scene.names)
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))
            return
        self.post_message(BlockExplained(scene.seq, scene.block, links, history))

    def on_block_explained(self, message: BlockExplained) -> None:
        scene = self.session.scene()
        if (message.seq, message.block) == (scene.seq, scene.block):
            self.query_one(Inspector).explain(message.chain, message.history)
