"""The first of an export's two passes over a trace: what its findings are, and where its steps lie.

It keeps a few numbers a step, and no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...recorder.events import Envelope
from ..check import Inspection
from ..source import EventSource
from ..verdict import Report


class Clock(NamedTuple):
    """When events happened, in microseconds."""

    made_up_because: str | None
    """Why it isn't the recorded one: then events are a microsecond apart."""

    def of(self, envelope: Envelope) -> float:
        return float(envelope.seq) if self.made_up_because else envelope.t_ns / 1000


class StepSpan(NamedTuple):
    """One step of one rank. Steps that overlap lie in different lanes, from 0."""

    first_seq: int
    last_seq: int
    lane: int


class Survey:
    """What one pass over a trace tells. `problems`: what its reader found missing or damaged."""

    def __init__(self, source: EventSource, problems: Sequence[str] = ()) -> None:
        inspection = Inspection()
        ends: dict[tuple[int, int], list[int]] = {}
        times = _Times()
        for envelope in source.envelopes():
            inspection.see(envelope)
            times.see(envelope)
            if envelope.step:
                own = ends.setdefault((envelope.rank, envelope.step), [envelope.seq, envelope.seq])
                own[1] = envelope.seq
        self.report: Report = inspection.report(problems)
        self.clock = Clock(times.useless_because())
        self.steps = _in_lanes(ends)
        """(rank, step) -> where it lies."""


def _in_lanes(ends: dict[tuple[int, int], list[int]]) -> dict[tuple[int, int], StepSpan]:
    """Each step in the first lane of its rank that is free when it begins; empties `ends`, which
    has them in the order in which they began."""
    lanes: dict[int, list[int]] = {}
    placed: dict[tuple[int, int], StepSpan] = {}
    for rank, step in list(ends):
        first, last = ends.pop((rank, step))
        busy_until = lanes.setdefault(rank, [])
        lane = next((i for i, end in enumerate(busy_until) if end < first), len(busy_until))
        busy_until[lane : lane + 1] = [last]
        placed[rank, step] = StepSpan(first, last, lane)
    return placed


class _Times:
    """Whether the recorded times can be drawn."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._backwards: str | None = None

    def see(self, envelope: Envelope) -> None:
        if envelope.t_ns < self._last.get(envelope.rank, 0) and self._backwards is None:
            self._backwards = envelope.position
        self._last[envelope.rank] = envelope.t_ns

    def useless_because(self) -> str | None:
        if self._backwards is not None:
            return f"the recorded times run backwards at {self._backwards}"
        return None if any(self._last.values()) else "no times were recorded"
