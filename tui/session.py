"""An opened trace and what is known of it so far: the app without its face."""

from __future__ import annotations

from dataclasses import dataclass

from ..recorder.errors import BadInput
from ..recorder.events import Envelope
from ..recorder.reader import TraceReader
from ..replay.findings import Finding
from ..replay.state import State
from ..replay.timeline import Timeline
from ..replay.verdict import Report
from .overview import Overview
from .presenters.blame import Blame, place_of
from .presenters.events import Names
from .presenters.owners import Owners
from .presenters.pieces import Pieces
from .tape import Tape

FOLDED_AT_ONCE = 2_000
"""Events that may be folded while a key is held; a longer way is a worker's."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment as every pane shows it. `state` is None while it is being folded."""

    seq: int
    envelope: Envelope
    state: State | None
    names: Names
    blame: Blame
    request: str | None
    block: int | None
    is_block_picked: bool


class Session:
    """Where the person is in the trace, what they look at, and what workers have found.

    `is_live`: somebody is still writing it. Raises BadInput for a trace without events.
    """

    def __init__(self, source: TraceReader, *, is_live: bool = False) -> None:
        if source.last_seq is None:
            raise BadInput(f"{source.path} holds no event; record again, or copy the whole file")
        self.source = source
        self.is_live = is_live
        self.is_following = False
        """Whether a live trace takes the person along to its newest step."""
        self.header = source.run
        self.timeline = Timeline(source)
        self.tape = Tape(source)
        self.overview = Overview()
        self.names = Names()
        self.blame = Blame()
        self.report: Report | None = None
        self.problems: tuple[str, ...] = ()
        self.state: State | None = None
        self.folded_until = -1
        """How far keyframes reach: up to there no seek is long."""
        self.seq = self.tape.first_seq
        self.picked_request: str | None = None
        self.picked_block: int | None = None
        self._request: str | None = None
        self._jumps: list[int] = []

    # --- what workers bring -----------------------------------------------------------------------

    def take_overview(self, overview: Overview) -> None:
        self.overview = overview
        self.names = Names(Owners(overview.requests), Pieces(dict(overview.pieces)))

    def take_report(self, report: Report, problems: tuple[str, ...]) -> None:
        self.report, self.problems = report, problems
        self.blame = Blame(report.findings)
        self._follow()

    def take_state(self, seq: int, state: State) -> bool:
        """Whether that is the state that is waited for."""
        if seq == self.seq:
            self.state = state
            self._follow()
        return seq == self.seq

    def grow(self, last_seq: int) -> int | None:
        """There are more events; where to go, for a person who follows them."""
        if last_seq != self.last_seq:
            self.tape.grow(last_seq)
        is_behind = self.is_following and self.seq != self.last_seq
        # a state that a worker still folds is shown before the next one is asked for
        return self.last_seq if is_behind and self.state is not None else None

    def reopen(self) -> None:
        """After damage was met: the source now ends where it can be trusted."""
        self.timeline = Timeline(self.source)
        self.tape = Tape(self.source)
        self.seq = min(self.seq, self.tape.last_seq)
        self.state = None

    # --- where ------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        return self.tape.last_seq

    @property
    def envelope(self) -> Envelope:
        return self.tape.get(self.seq) or self.source.at(self.seq)

    def is_near(self, seq: int) -> bool:
        """Whether the state after `seq` can be had at once."""
        if self.last_seq <= FOLDED_AT_ONCE or seq <= self.folded_until:
            return True
        return self.state is not None and abs(seq - self.seq) <= FOLDED_AT_ONCE

    def go(self, seq: int, *, remember: bool = False) -> bool:
        """Moves to an event; whether its state is there already, or a worker must fold it."""
        is_near, before = self.is_near(seq), self.seq
        state = self.timeline.state_at(seq) if is_near else None
        self.seq, self.state = seq, state
        if remember and seq != before:
            self._jumps.append(before)
        self._follow()
        return is_near

    def back(self) -> int | None:
        """Where the last jump came from."""
        return self._jumps.pop() if self._jumps else None

    def next_finding(self) -> int | None:
        """The next event with a finding, round to the first one."""
        seqs = self.blame.seqs
        later = [seq for seq in seqs if seq > self.seq]
        return next(iter(later or seqs), None)

    def culprit(self) -> int | None:
        """The culprit of the finding at hand, else of the first root."""
        here = self.blame.at(self.seq)
        roots = [finding for finding in self.blame.findings if finding.root]
        chosen = [*here, *roots, *self.blame.findings]
        return place_of(chosen[0]) if chosen else None

    def root_of(self, finding: Finding) -> Finding | None:
        """The root that names the culprit of a finding which has none of its own."""
        if finding.culprit_seq is not None:
            return None
        roots = (f for f in self.blame.findings if f.root)
        return next((f for f in roots if f.fault_class == finding.fault_class), None)

    # --- what is looked at ------------------------------------------------------------------------

    def unpick(self) -> None:
        self.picked_block = self.picked_request = None
        self._follow()

    @property
    def request(self) -> str | None:
        return self.picked_request if self.picked_request is not None else self._request

    @property
    def block(self) -> int | None:
        if self.picked_block is not None:
            return self.picked_block
        found = self.blame.at(self.seq)
        if found and found[0].block is not None:
            return found[0].block
        return getattr(self.envelope.event, "block", None)

    def scene(self) -> Scene:
        return Scene(
            self.seq,
            self.envelope,
            self.state,
            self.names,
            self.blame,
            self.request,
            self.block,
            self.picked_block is not None,
        )

    def _follow(self) -> None:
        """Without a pick, the victim of a finding here, else the request of the event."""
        found = [finding.victim for finding in self.blame.at(self.seq) if finding.victim]
        request = found[0] if found else getattr(self.envelope.event, "request", None)
        if request is not None:
            self._request = request
        elif self._request is None and self.state is not None:
            self._request = next(iter(self.state.requests), None)
