"""What the whole trace looks like: one pass over a few kinds of events, in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..recorder.events import (
    PiecesDefined,
    RequestAdded,
    RequestPreempted,
    StepScheduled,
)
from ..recorder.reader import StepSpan
from ..replay.source import EventSource

STEPS_PER_SNAPSHOT = 2_000
"""How often the pass shows what it has so far."""

_KINDS = (RequestAdded, RequestPreempted, StepScheduled, PiecesDefined)


class StepSummary(NamedTuple):
    """One step as the timeline shows it."""

    step: int
    first_seq: int
    last_seq: int
    prefill: int = 0
    """Tokens computed in prefill rows."""
    decode: int = 0
    preempted: int = 0
    """Requests that lost their blocks."""
    added: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """Steps in order, requests in order of arrival, and the text of tokens, as far as read."""

    steps: tuple[StepSummary, ...] = ()
    requests: tuple[str, ...] = ()
    pieces: tuple[tuple[int, str], ...] = ()

    def index_of(self, seq: int) -> int | None:
        """Index in `steps` of the step that had begun last at `seq`."""
        low, high = 0, len(self.steps)
        while low < high:
            middle = (low + high) // 2
            if self.steps[middle].first_seq <= seq:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low else None


def overviews(source: EventSource) -> Iterator[Overview]:
    """Ever more complete overviews; the last one is of the whole trace."""
    spans = source.spans()
    steps = {span.step: _of(span) for span in spans}
    yield Overview(tuple(steps.values()))
    requests: dict[str, None] = {}
    pieces: dict[int, str] = {}
    seen = 0
    for envelope in source.find(kinds=[kind.__name__ for kind in _KINDS]):
        step = steps.get(envelope.step, StepSummary(envelope.step, envelope.seq, envelope.seq))
        match envelope.event:
            case RequestAdded() as event:
                requests[event.request] = None
                steps[envelope.step] = step._replace(added=step.added + 1)
            case RequestPreempted():
                steps[envelope.step] = step._replace(preempted=step.preempted + 1)
            case StepScheduled() as event:
                steps[envelope.step] = _with_tokens(step, event)
                seen += 1
                if seen % STEPS_PER_SNAPSHOT == 0:
                    yield Overview(tuple(steps.values()), tuple(requests), tuple(pieces.items()))
            case PiecesDefined() as event:
                pieces.update(zip(event.tokens, event.pieces, strict=False))
    yield Overview(tuple(steps.values()), tuple(requests), tuple(pieces.items()))


def _of(span: StepSpan) -> StepSummary:
    return StepSummary(span.step, span.first_seq, span.last_seq)


def _with_tokens(step: StepSummary, event: StepScheduled) -> StepSummary:
    tokens = {"prefill": 0, "decode": 0}
    for count, phase in zip(event.scheduled, event.phases, strict=False):
        tokens[phase] += count
    return step._replace(
        prefill=step.prefill + tokens["prefill"], decode=step.decode + tokens["decode"]
    )
