"""A sink with observers: shows whole steps to whoever asked, in the emitting thread.

The trace writer has observers of its own, in its own thread and a little later. This one is for
runs that nobody records, and for whoever must know of a step before the next one begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from .events import Envelope, Event
from .sink import Sink
from .writer import Observer


class ObservedSink:
    """Passes events on to `sink`, and shows them to the observers when their step is over.

    A step is over when a later one begins, or when `step_over` says so. Events are numbered as the
    trace writer numbers them. What an observer raises comes out of `emit` or `step_over`.
    """

    def __init__(self, sink: Sink, observers: Iterable[Observer]) -> None:
        self._sink = sink
        self._observers = tuple(observers)
        self._start_ns = time.perf_counter_ns()
        self._seq = 0
        self._step = 0
        self._open: list[Envelope] = []

    def emit(self, event: Event, step: int) -> None:
        if step > self._step:
            self.step_over()
            self._step = step
        self._sink.emit(event, step)
        t_ns = time.perf_counter_ns() - self._start_ns
        self._open.append(Envelope(self._seq, step, t_ns, 0, event))
        self._seq += 1

    def step_over(self) -> None:
        """Show what came since the last time."""
        envelopes, self._open = self._open, []
        for observer in self._observers if envelopes else ():
            observer(envelopes)
