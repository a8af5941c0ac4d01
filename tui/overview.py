"""What the whole trace looks like: one pass over a few kinds of events, in a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..recorder.events import (
    Envelope,
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


class Survey:
    """An overview under way: shown every event of some kinds, in order, and where steps lie."""

    KINDS: ClassVar = tuple(kind.__name__ for kind in _KINDS)

    def __init__(self, spans: Iterable[StepSpan] = ()) -> None:
        self._steps = {span.step: _of(span) for span in spans}
        self._requests: dict[str, None] = {}
        self._pieces: dict[int, str] = {}

    def see(self, envelope: Envelope) -> None:
        step = self._steps.get(envelope.step)
        if step is None:
            step = StepSummary(envelope.step, envelope.seq, envelope.seq)
        if envelope.seq > step.last_seq:
            step = step._replace(last_seq=envelope.seq)
        match envelope.event:
            case RequestAdded() as event:
                self._requests[event.request] = None
                step = step._replace(added=step.added + 1)
            case RequestPreempted():
                step = step._replace(preempted=step.preempted + 1)
            case StepScheduled() as event:
                step = _with_tokens(step, event)
            case PiecesDefined() as event:
                self._pieces.update(zip(event.tokens, event.pieces, strict=False))
        self._steps[envelope.step] = step

    def so_far(self) -> Overview:
        steps = tuple(self._steps.values())
        return Overview(steps, tuple(self._requests), tuple(self._pieces.items()))


def overviews(source: EventSource) -> Iterator[Overview]:
    """Ever more complete overviews; the last one is of the whole trace."""
    for survey in surveys(source):
        yield survey.so_far()


def surveys(source: EventSource, stop_seq: int | None = None) -> Iterator[Survey]:
    """One survey, each time that it has something to show; at last it has seen everything before
    `stop_seq`."""
    survey = Survey(source.spans())
    yield survey
    seen = 0
    for envelope in source.find(kinds=Survey.KINDS, stop_seq=stop_seq):
        survey.see(envelope)
        seen += isinstance(envelope.event, StepScheduled)
        if seen == STEPS_PER_SNAPSHOT:
            yield survey
            seen = 0
    yield survey


def _of(span: StepSpan) -> StepSummary:
    return StepSummary(span.step, span.first_seq, span.last_seq)


def _with_tokens(step: StepSummary, event: StepScheduled) -> StepSummary:
    tokens = {"prefill": 0, "decode": 0}
    for count, phase in zip(event.scheduled, event.phases, strict=False):
        tokens[phase] += count
    return step._replace(
        prefill=step.prefill + tokens["prefill"], decode=step.decode + tokens["decode"]
    )
