"""Any moment of a run, forwards and backwards.

A state is folded from the nearest keyframe, so that a seek costs what lies between two of them,
not the length of the trace. Nothing is folded before it is asked for: the beginning of a trace of
a million events is there at once, its end after one pass (`warming`, in a worker).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..recorder.errors import NoSuchPosition
from ..recorder.events import Envelope
from ..recorder.memory import MemorySink
from ..recorder.reader import StepSpan
from .keyframes import FINE_DISTANCE, FINE_KEPT, Frames, fine_marks, interval_after
from .reducer import apply
from .source import EventSource, source_of
from .state import State

WARMED_AT_A_TIME = 256
"""Events that `warming` folds before it lets others in."""


class Timeline:
    """The states and events of one run, by seq.

    A timeline may be used from several threads: one lock guards it, and `warming` lets go of it
    between slices. States that it gives are the caller's to read, not to advance: `copy` shares
    the write log, which only the timeline may append to.
    """

    def __init__(self, events: EventSource | MemorySink | Sequence[Envelope]) -> None:
        self.source = source_of(events)
        self._entry = threading.Lock()
        self._lock = threading.Lock()
        self._coarse = Frames()
        self._fine = Frames()
        self._cursor = State()
        self._interval = interval_after(self._cursor)
        self._last_seq = self.source.last_seq
        self._steps: list[StepSpan] = []
        self._steps_until: int | None = None

    # --- states -----------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int | None:
        """Of the last event there is now (a live trace grows)."""
        return self.source.last_seq

    def state_at(self, seq: int) -> State:
        """The state after event `seq`; in a dropped span, after the last one before it.

        Raises NoSuchPosition outside the trace.
        """
        with self._turn():
            self._require(seq)
            self._seek(seq)
            return self._cursor.copy()

    def warming(self) -> Iterator[int]:
        """Fold to the end and leave keyframes; yields the seq reached, slice by slice.

        A worker may stop at any time, and others ask in between.
        """
        state = State()
        while True:
            with self._turn():
                last = self._coarse.last
                if last is not None and (state.seq is None or (last.seq or 0) > state.seq):
                    state = last.copy()
                start = _next(state)
                for envelope in self.source.envelopes(start, start + WARMED_AT_A_TIME):
                    apply(state, envelope)
                    self._lay_coarse(state)
                end = self.source.last_seq
            reached = start + WARMED_AT_A_TIME - 1
            if end is None:
                return
            if state.seq is None or state.seq < reached:
                # a span was dropped here, or this is the end
                state.seq = min(reached, end)
            yield state.seq
            if state.seq >= end:
                return

    def warm(self, progress: Callable[[int, int], None]) -> None:
        """`warming` to the end; `progress` hears of the seq reached and of the last one."""
        for seq in self.warming():
            progress(seq, self.source.last_seq or seq)

    # --- events -----------------------------------------------------------------------------------

    def at(self, seq: int) -> Envelope:
        """Raises NoSuchPosition if there is no event of that number."""
        return self.source.at(seq)

    def position(self, text: str) -> int:
        """The seq of `step:seq`, of a bare `seq`, or of the first event of `step:`.

        Raises NoSuchPosition if the text is no position, or the trace has no such event.
        """
        step, colon, seq = (part.strip() for part in text.partition(":"))
        if not all(part.isascii() and part.isdigit() for part in (step, seq) if part) or not step:
            raise NoSuchPosition(
                f"{text!r} is not a position; write step:seq as in 9:1203, the seq alone, "
                "or a step and a colon as in 9:"
            )
        if not colon:
            return self.at(int(step)).seq
        if not seq:
            return self.seq_of_step(int(step))
        found = self.at(int(seq))
        if found.step != int(step):
            raise NoSuchPosition(
                f"event {seq} belongs to step {found.step}, not {step}; "
                f"did you mean {found.position}?"
            )
        return found.seq

    # --- steps ------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[StepSpan]:
        """Where each step lies, in the order of their first events.

        In engines that overlap steps, the span of one reaches into that of the next.
        """
        last_seq = self.source.last_seq
        if last_seq != self._steps_until:
            known = -1 if self._steps_until is None else self._steps_until
            self._steps = _joined(self._steps, self.source.spans(known + 1))
            self._steps_until = max((span.last_seq for span in self._steps), default=last_seq)
        return self._steps

    def seq_of_step(self, step: int) -> int:
        """The first event of a step. Raises NoSuchPosition if the trace has none."""
        return self.span_of_step(step).first_seq

    def span_of_step(self, step: int) -> StepSpan:
        """Raises NoSuchPosition if the trace has no event of that step."""
        for span in self.steps:
            if span.step == step:
                return span
        highest = max((span.step for span in self.steps), default=0)
        raise NoSuchPosition(f"there is no event of step {step}; the last step is {highest}")

    def next_step(self, seq: int) -> int | None:
        """The first event of the step that begins next after `seq`; None at the end."""
        steps = self.steps
        index = bisect_right(steps, seq, key=lambda span: span.first_seq)
        return steps[index].first_seq if index < len(steps) else None

    def previous_step(self, seq: int) -> int | None:
        """The first event of the step that began last before `seq`; None at the beginning.

        In the middle of a step that is this step's own beginning.
        """
        steps = self.steps
        index = bisect_left(steps, seq, key=lambda span: span.first_seq)
        return steps[index - 1].first_seq if index else None

    # --- how --------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Whoever waits for the lock holds the entry, so that `warming` can't take the lock again
        before them, as a thread that has just let it go would."""
        with self._entry:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _require(self, seq: int) -> None:
        if self._last_seq is None or seq > self._last_seq:
            self._last_seq = self.source.last_seq
        if self._last_seq is None or not 0 <= seq <= self._last_seq:
            raise NoSuchPosition(f"there is no event {seq}; the last is {self._last_seq}")

    def _seek(self, seq: int) -> None:
        base = self._base(seq)
        if base is not self._cursor:
            self._cursor = base.copy()
        start = _next(base)
        marks = fine_marks(start, seq)
        mark = next(marks, None)
        for envelope in self.source.envelopes(start, seq + 1):
            if envelope.seq == seq and mark is None:
                self._lay_fine_behind(seq)
            apply(self._cursor, envelope)
            self._lay_coarse(self._cursor)
            if mark is not None and envelope.seq >= mark:
                self._fine.add(self._cursor)
                mark = next(marks, None)
        self._fine.keep_near(seq, FINE_KEPT)

    def _base(self, seq: int) -> State:
        """The state from which the way to `seq` is shortest: the cursor's, or a keyframe's."""
        found = [self._coarse.nearest(seq), self._fine.nearest(seq)]
        if self._cursor.seq is not None and self._cursor.seq <= seq:
            found.append(self._cursor)
        known = [state for state in found if state is not None]
        # the last of equals, since the cursor needs no copy
        return max(reversed(known), key=lambda state: state.seq or 0, default=State())

    def _lay_coarse(self, state: State) -> None:
        last = self._coarse.last
        since = _next(state) - (_next(last) if last else 0)
        if since >= self._interval:
            self._coarse.add(state)
            self._interval = interval_after(state)

    def _lay_fine_behind(self, seq: int) -> None:
        """Whoever steps forward one by one may turn round at any event."""
        nearest = max(
            (_next(f) for f in (self._coarse.nearest(seq), self._fine.nearest(seq)) if f),
            default=0,
        )
        if seq - nearest >= 2 * FINE_DISTANCE:
            self._fine.add(self._cursor)


def _joined(steps: list[StepSpan], more: list[StepSpan]) -> list[StepSpan]:
    """Spans, and those of the events behind them; a step may have events on both sides."""
    joined = {span.step: span for span in steps}
    for span in more:
        known = joined.get(span.step)
        joined[span.step] = (
            span
            if known is None
            else StepSpan(span.step, known.first_seq, span.last_seq, known.events + span.events)
        )
    return list(joined.values())


def _next(state: State) -> int:
    """The seq after that of the state."""
    return 0 if state.seq is None else state.seq + 1
