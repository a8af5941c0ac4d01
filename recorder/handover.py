"""Between the engine's thread, which emits steps, and the writer's, which stores them.

The queue is bounded, in events: when the store can't keep up, either the engine waits for it or
whole steps are dropped; memory never grows without end.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal, NamedTuple

from .events import Envelope

WhenFull = Literal["block", "drop-and-mark"]
"""`block`: the run waits for the store. `drop-and-mark`: the run goes on; the steps that found no
room are missing from the trace, and a `SpanDropped` says so."""

QUEUE_EVENTS = 20_000
"""About as many seconds of a serving engine as a disk may be busy with something else."""


class ClosedStep(NamedTuple):
    step: int
    envelopes: list[Envelope]


class Handover:
    """A queue of closed steps that together have at most `bound` events.

    A step larger than the bound is taken when nothing else waits.
    """

    def __init__(self, bound: int, when_full: WhenFull) -> None:
        self._bound = bound
        self._when_full: WhenFull = when_full
        self._steps: deque[ClosedStep] = deque()
        self._events = 0
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)
        self._left = threading.Condition(lock)
        self._hurry = threading.Event()
        self._ended = False
        self._abandoned = False

    @property
    def depth(self) -> int:
        """Events that wait now."""
        return self._events

    @property
    def steps(self) -> int:
        """Steps that wait now."""
        return len(self._steps)

    def put(self, step: ClosedStep, when_full: WhenFull | None = None) -> bool:
        """False if there was no room and the step must be dropped."""
        how = when_full or self._when_full
        size = len(step.envelopes)
        with self._left:
            if not self._has_room(size):
                self._hurry.set()
                if how == "drop-and-mark":
                    return False
                self._left.wait_for(lambda: self._has_room(size))
            if not self._abandoned:
                self._steps.append(step)
                self._events += size
                self._arrived.notify()
        return True

    def end(self) -> None:
        """Nothing more comes."""
        with self._arrived:
            self._ended = True
            self._hurry.set()
            self._arrived.notify()

    def abandon(self) -> None:
        """Nobody takes any more: whoever waits for room goes on, and what comes is let go."""
        with self._left:
            self._abandoned = True
            self._steps.clear()
            self._events = 0
            self._left.notify_all()

    def take(self) -> ClosedStep | None:
        """Waits for a step; None after the last."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._steps or self._ended)
            return self._taken()

    def take_now(self) -> ClosedStep | None:
        """None if none waits."""
        with self._arrived:
            return self._taken()

    def gather(self, seconds: float) -> None:
        """Rest while more steps come, unless there is no room for them, or nothing more comes."""
        self._hurry.wait(seconds)

    def _taken(self) -> ClosedStep | None:
        if not self._steps:
            return None
        step = self._steps.popleft()
        self._events -= len(step.envelopes)
        if not self._ended:
            self._hurry.clear()
        self._left.notify_all()
        return step

    def _has_room(self, size: int) -> bool:
        return self._abandoned or not self._steps or self._events + size <= self._bound
