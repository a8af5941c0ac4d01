"""What a run was like for each of its requests, for a table of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...recorder.events import (
    Envelope,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RunStarted,
    SpanDropped,
    StepCompleted,
    StepScheduled,
    TokensSampled,
)
from .pool_level import PoolLevel


class Stretch(NamedTuple):
    """Steps in which a request was in one phase, both ends included."""

    phase: str
    first: int
    last: int


class PoolSample(NamedTuple):
    """Blocks of all KV groups of a rank when a step was completed."""

    rank: int
    step: int
    held: int
    cached: int


@dataclass(slots=True)
class RequestFacts:
    """What one rank did for a request."""

    name: str
    rank: int = 0
    added_step: int | None = None
    tenant: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, those that existed when it was first scheduled."""
    sampled_tokens: int = 0
    preemptions: int = 0
    outcome: str | None = None
    stretches: list[Stretch] = field(default_factory=list)

    def enter(self, phase: str, step: int) -> None:
        """The request is in that phase from this step on."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.phase == phase:
            self.stretches[-1] = last._replace(last=max(step, last.last))
            return
        if last is not None:
            self.stretches[-1] = last._replace(last=max(last.first, step - 1, last.last))
        self.stretches.append(Stretch(phase, step, step))


class RunFacts:
    """`see` every event in order."""

    def __init__(self) -> None:
        self.header: RunStarted | None = None
        self.events = 0
        self.last_step = 0
        self.headers: dict[int, RunStarted] = {}
        """Rank -> its header."""
        self.ranks: set[int] = set()
        self.requests: dict[tuple[int, str], RequestFacts] = {}
        self.pool: list[PoolSample] = []
        """One a step, while its rows are computed."""
        self._levels: dict[tuple[int, int], PoolLevel] = {}
        """Of each rank and KV group."""

    def see(self, envelope: Envelope) -> None:
        step, rank = envelope.step, envelope.rank
        self.events += 1
        self.ranks.add(rank)
        self.last_step = max(self.last_step, step)
        match envelope.event:
            case RunStarted() as event:
                self.header = self.header or event
                self.headers.setdefault(rank, event)
            case RequestAdded() as event:
                self._added(self._of(rank, event.request), event, step)
            case StepScheduled() as event:
                self._scheduled(event, step, rank)
            case TokensSampled() as event:
                for name in event.requests:
                    self._of(rank, name).sampled_tokens += 1
            case RequestPreempted() as event:
                preempted = self._of(rank, event.request)
                preempted.preemptions += 1
                preempted.enter("preempted", step)
            case RequestFinished() as event:
                self._of(rank, event.request).outcome = event.reason
            case StepCompleted():
                levels = [level for key, level in self._levels.items() if key[0] == rank]
                held = sum(len(level.held) for level in levels)
                cached = sum(len(level.cached) for level in levels)
                self.pool.append(PoolSample(rank, step, held, cached))
            case SpanDropped():
                self._levels = {key: level for key, level in self._levels.items() if key[0] != rank}
            case _:
                self._block(envelope)

    def _block(self, envelope: Envelope) -> None:
        if envelope.kind.startswith("Block"):
            group = getattr(envelope.event, "group", None) or 0
            self._levels.setdefault((envelope.rank, group), PoolLevel()).see(envelope.event)

    def _added(self, facts: RequestFacts, event: RequestAdded, step: int) -> None:
        facts.added_step, facts.prompt_tokens = step, len(event.prompt_tokens)
        facts.tenant = None if event.tenant is None else str(event.tenant)
        facts.enter("waiting", step)

    def _scheduled(self, event: StepScheduled, step: int, rank: int) -> None:
        rows = zip(event.requests, event.computed, event.phases, strict=False)
        for name, computed, phase in rows:
            facts = self._of(rank, name)
            if facts.cached_tokens is None and facts.prompt_tokens is not None:
                facts.cached_tokens = min(computed, facts.prompt_tokens)
            facts.enter(phase, step)

    def _of(self, rank: int, name: str) -> RequestFacts:
        return self.requests.setdefault((rank, name), RequestFacts(name, rank))
