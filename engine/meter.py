"""Counts what a run's events say of its scheduler and its cache, and forgets the events."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockShared,
    BlockUnregistered,
    DraftVerified,
    Event,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RunStarted,
    StepScheduled,
    TokensSampled,
    TransferStarted,
)
from .clock import Clock
from .request import Prompt


@dataclass(frozen=True, slots=True)
class Waits:
    """Mean and percentiles in seconds; None where there was nothing to wait for."""

    mean_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Waits:
        values = np.fromiter(seconds, dtype=float)
        if not len(values):
            return cls()
        p95, p99 = np.percentile(values, (95, 99)).tolist()
        return cls(float(values.mean()), p95, p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run was like. Times are the clock's.

    `cached_tokens` of the `prompt_tokens` their request never computed, since the cache (or host
    memory) held them; `hit_rate` is their share. `recomputed_tokens` it computed more than once
    (preemption). A block is in use while a request holds it: `pool_mean` (over the
    steps) and `pool_peak` are shares of the pool. `first_token`: from arrival to the first token,
    `next_token`: from one token of a request to its next one.
    """

    requests: int
    unfinished: int
    prompt_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    sampled_tokens: int
    steps: int
    preemptions: int
    evictions: int
    host_stores: int
    host_loads: int
    drafts: int
    drafts_accepted: int
    pool_mean: float
    pool_peak: float
    time_s: float
    first_token: Waits
    next_token: Waits
    first_token_by_priority: Mapping[int, Waits]

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.sampled_tokens / self.time_s if self.time_s else 0.0


@dataclass(slots=True)
class _Life:
    """A request while it is served. Samples beyond the first don't count for `first_token`."""

    arrived: float
    priority: int
    is_further_sample: bool
    computed: int = 0
    """Tokens from the first one on whose KV existed at some time, for this request."""
    last_token: float | None = None


class Meter:
    """A sink that counts. Holds one number per waiting time, and per request while it lives.

    `prompts` say who arrives when, if not whenever the engine takes it in, and of which priority
    it is.
    """

    def __init__(self, clock: Clock, prompts: Iterable[Prompt] = ()) -> None:
        self._clock = clock
        self._prompts = {prompt.request: prompt for prompt in prompts}
        self._lives: dict[str, _Life] = {}
        self._held: set[tuple[int, int]] = set()
        self._pool = 1
        self._count: dict[str, int] = dict.fromkeys(_COUNTED, 0)
        self._blocks_in_use = 0  # summed over the steps
        self._peak = 0
        self._first: dict[int, array[float]] = {}
        self._next: array[float] = array("d")
        self._handlers: Mapping[type[Event], Callable[[Any], None]] = {
            RunStarted: self._run_started,
            RequestAdded: self._added,
            RequestFinished: self._finished,
            RequestPreempted: self._counts("preemptions"),
            BlockAllocated: self._block_in_use,
            BlockShared: self._block_in_use,
            BlockFreed: self._block_freed,
            BlockUnregistered: self._unregistered,
            StepScheduled: self._scheduled,
            TokensSampled: self._sampled,
            DraftVerified: self._verified,
            TransferStarted: self._transfer,
        }

    def emit(self, event: Event, step: int) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def measured(self) -> Measured:
        """So far."""
        steps = max(self._count["steps"], 1)
        return Measured(
            **self._count,
            unfinished=len(self._lives),
            pool_mean=self._blocks_in_use / steps / self._pool,
            pool_peak=self._peak / self._pool,
            time_s=self._clock.now(),
            first_token=Waits.of(s for waits in self._first.values() for s in waits),
            next_token=Waits.of(self._next),
            first_token_by_priority={
                priority: Waits.of(waits) for priority, waits in sorted(self._first.items())
            },
        )

    def _counts(self, name: str) -> Callable[[Event], None]:
        def count(event: Event) -> None:
            self._count[name] += 1

        return count

    def _run_started(self, event: RunStarted) -> None:
        self._pool = event.num_blocks * max(len(event.groups), 1)

    def _added(self, event: RequestAdded) -> None:
        further = event.parent is not None
        arrived, priority = self._clock.now(), event.priority or 0
        prompt = self._prompts.get(event.parent or event.request)
        if prompt is not None:
            arrived = arrived if prompt.arrival_s is None else prompt.arrival_s
            priority = prompt.priority
        self._lives[event.request] = _Life(arrived, priority, further)
        self._count["requests"] += 1
        if not further:
            self._count["prompt_tokens"] += len(event.prompt_tokens)

    def _finished(self, event: RequestFinished) -> None:
        self._lives.pop(event.request, None)

    def _block_in_use(self, event: BlockAllocated | BlockShared) -> None:
        self._held.add((event.group or 0, event.block))
        self._peak = max(self._peak, len(self._held))

    def _block_freed(self, event: BlockFreed) -> None:
        self._held.discard((event.group or 0, event.block))

    def _unregistered(self, event: BlockUnregistered) -> None:
        self._count["evictions"] += event.reason == "evicted"

    def _scheduled(self, event: StepScheduled) -> None:
        self._count["steps"] += 1
        self._blocks_in_use += len(self._held)
        for name, computed, scheduled, phase in zip(
            event.requests, event.computed, event.scheduled, event.phases, strict=True
        ):
            life, end = self._lives[name], computed + scheduled
            found = max(computed - life.computed, 0)
            self._count["cached_tokens"] += 0 if life.is_further_sample else found
            if phase == "prefill":  # rejected drafts are computed again too, as decode
                self._count["recomputed_tokens"] += max(min(life.computed, end) - computed, 0)
            life.computed = max(life.computed, end)

    def _sampled(self, event: TokensSampled) -> None:
        now = self._clock.now()
        self._count["sampled_tokens"] += len(event.requests)
        for name in event.requests:
            life = self._lives[name]
            if life.last_token is not None:
                self._next.append(now - life.last_token)
            elif not life.is_further_sample:
                self._first.setdefault(life.priority, array("d")).append(now - life.arrived)
            life.last_token = now

    def _verified(self, event: DraftVerified) -> None:
        self._count["drafts"] += len(event.proposed)
        self._count["drafts_accepted"] += event.accepted

    def _transfer(self, event: TransferStarted) -> None:
        if event.direction in ("store", "load"):
            self._count[f"host_{event.direction}s"] += len(event.blocks)


_COUNTED = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "sampled_tokens",
    "steps",
    "preemptions",
    "evictions",
    "host_stores",
    "host_loads",
    "drafts",
    "drafts_accepted",
)
