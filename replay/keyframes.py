"""Copies of the state along a trace, so that no seek folds more than the way from the last one.

Coarse ones stand at every so many events, for ever; fine ones only near the cursor, at distances
that double: a step back then folds what the step before it folded, not the whole interval.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from .state import State

SMALLEST_INTERVAL = 1_024
"""Events between coarse keyframes of a small state."""

ENTRIES_AN_EVENT = 4
"""How many entries of copied tables all keyframes may hold together, per event."""

FINE_DISTANCE = 128
"""Events between the cursor and the nearest fine keyframe behind it."""

FINE_KEPT = 24


class Frames:
    """States by their seq. They are never advanced: whoever folds on takes a copy."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._seqs: list[int] = []

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def last(self) -> State | None:
        return self._states[self._seqs[-1]] if self._seqs else None

    def add(self, state: State) -> None:
        """Keeps a copy; a state before the first event, or known already, is not kept."""
        if state.seq is not None and state.seq not in self._states:
            self._states[state.seq] = state.copy()
            insort(self._seqs, state.seq)

    def nearest(self, seq: int) -> State | None:
        """The last one at or before `seq`."""
        index = bisect_right(self._seqs, seq)
        return self._states[self._seqs[index - 1]] if index else None

    def keep_near(self, seq: int, count: int) -> None:
        """Forget all but the `count` nearest to `seq`."""
        if len(self._seqs) > count:
            nearest = sorted(self._seqs, key=lambda known: abs(known - seq))[:count]
            self._seqs = sorted(nearest)
            self._states = {known: self._states[known] for known in self._seqs}


def interval_after(state: State) -> int:
    """Events until the next coarse keyframe: more when the state is large, so that the memory
    of all keyframes grows with the trace and not with the trace times the pool."""
    pools = state.pools.values()
    entries = sum(len(p.slots) + len(p.blocks) + len(p.index) + len(p.tables) for p in pools)
    return max(SMALLEST_INTERVAL, (entries + len(state.requests)) // ENTRIES_AN_EVENT)


def fine_marks(start: int, target: int) -> Iterator[int]:
    """Seqs between the two, in order, at doubling distances before `target`."""
    distances: list[int] = []
    distance = FINE_DISTANCE
    while target - distance > start:
        distances.append(distance)
        distance *= 2
    return (target - distance for distance in reversed(distances))
