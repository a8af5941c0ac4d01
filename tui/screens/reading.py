"""The workers of the debugger: they read the trace, fold states, judge, and only post."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event

from textual import work
from textual.screen import Screen
from textual.worker import Worker, WorkerCancelled, get_current_worker

from ...recorder.errors import KvrewindError, UnreadableTrace
from ...recorder.events import Envelope
from ..growth import follower_of, growths, reports
from ..messages import (
    Folding,
    OverviewRead,
    StateFolded,
    TraceChecked,
    TraceCut,
    TraceGrew,
    TraceUnreadable,
)
from ..overview import overviews
from ..session import Session


class ReadingScreen(Screen[None]):
    """What it posts is handled by the screen that a person sees."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._nobody_waits = Event()
        self._nobody_waits.set()
        self._is_over = Event()
        """Nothing is added to the trace any more."""

    def read_trace(self) -> None:
        """All of it; of a live one, what is there and then what comes."""
        if self.session.is_live:
            self._grow(self.session.last_seq + 1)
            self._judge()
        else:
            self._read()

    @work(thread=True, exclusive=True, group="fold")
    def fold(self, seq: int) -> None:
        """Bring the state after an event that is far."""
        worker, timeline = get_current_worker(), self.session.timeline
        self._nobody_waits.clear()
        try:
            # slice by slice, since a fold from afar can't be stopped
            for reached in timeline.warming():
                if worker.is_cancelled:
                    return
                if reached >= seq:
                    break
            self.post_message(StateFolded(seq, timeline.state_at(seq)))
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))
        finally:
            self._nobody_waits.set()

    # --- a trace that is finished -----------------------------------------------------------------

    @work(thread=True, group="read")
    def _read(self) -> None:
        self._cutting_at_damage(self._read_finished)

    def _read_finished(self, worker: Worker[None]) -> None:
        """Steps first, then findings, then keyframes for quick seeks."""
        from ...replay.check import check

        source = self.session.source
        for overview in overviews(source):
            self.post_message(OverviewRead(overview))
            if worker.is_cancelled:
                return
        report = check(self._while_open(source.envelopes(), worker))
        self.post_message(TraceChecked(report, tuple(source.problems)))
        for reached in self.session.timeline.warming():
            if worker.is_cancelled:
                return
            self.post_message(Folding(reached))

    # --- a trace that is being written ------------------------------------------------------------

    @work(thread=True, group="grow")
    def _grow(self, start_seq: int) -> None:
        worker, source = get_current_worker(), self.session.source
        try:
            for growth in growths(source, follower_of(source, start_seq)):
                if worker.is_cancelled:
                    return
                if growth is not None:
                    self.post_message(TraceGrew(*growth))
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))
        finally:
            self._is_over.set()

    @work(thread=True, group="read")
    def _judge(self) -> None:
        self._cutting_at_damage(self._judge_live)

    def _judge_live(self, worker: Worker[None]) -> None:
        def waited_for_end(seconds: float) -> bool:
            is_over = self._is_over.wait(seconds)
            if worker.is_cancelled:
                raise WorkerCancelled("the app was closed")
            return is_over

        def read(envelopes: Iterable[Envelope]) -> Iterator[Envelope]:
            return self._while_open(envelopes, worker)

        for report, problems in reports(self.session.source, waited_for_end, read):
            self.post_message(TraceChecked(report, problems))

    # --- how --------------------------------------------------------------------------------------

    def _cutting_at_damage(self, read: Callable[[Worker[None]], None]) -> None:
        try:
            read(get_current_worker())
        except WorkerCancelled:
            return
        except UnreadableTrace:
            self._ask_for_problems()
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))

    def _ask_for_problems(self) -> None:
        """Which makes the reader go on with what can be trusted."""
        try:
            self.post_message(TraceCut(tuple(self.session.source.problems)))
        except KvrewindError as error:
            self.post_message(TraceUnreadable(str(error)))

    def _while_open(
        self, envelopes: Iterable[Envelope], worker: Worker[None]
    ) -> Iterator[Envelope]:
        """A long check gives way to a state that somebody waits for, and ends when the app does.

        Raises WorkerCancelled.
        """
        for envelope in envelopes:
            self._nobody_waits.wait()
            if worker.is_cancelled:
                raise WorkerCancelled("the app was closed")
            yield envelope
