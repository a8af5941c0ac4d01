"""What a run has done so far, counted from its events, and nothing kept of what is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockRegistered,
    BlockShared,
    BlockUnregistered,
    Envelope,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RunStarted,
    Scalar,
    SpanDropped,
    StepScheduled,
    TokensSampled,
)


class PoolUse(NamedTuple):
    """Blocks of one KV group; `free` is None where the size of the pool isn't known."""

    used: int
    """Held by a request."""
    cached: int
    """Held by none, and under a key of the prefix index."""
    free: int | None


@dataclass(slots=True)
class _Life:
    is_further_sample: bool
    computed: int = 0
    """Tokens from the first one on whose KV existed at some time, for this request."""


@dataclass(slots=True)
class _Blocks:
    held: set[int] = field(default_factory=set)
    keys: dict[int, set[Scalar]] = field(default_factory=dict)


class RunTally:
    """An observer, or `see` each event in order. Any engine's events will do."""

    def __init__(self) -> None:
        self.header: RunStarted | None = None
        self.last_step = 0
        self.steps = 0
        """Those that had rows."""
        self.requests = 0
        self.finished = 0
        self.preemptions = 0
        self.evictions = 0
        self.prompt_tokens = 0
        """Of further samples of a prompt (n > 1) none are counted."""
        self.cached_tokens = 0
        """Of these, those that their request never computed: the cache had them."""
        self.sampled_tokens = 0
        self.dropped_events = 0
        self._lives: dict[str, _Life] = {}
        self._blocks: dict[int, _Blocks] = {}

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def pools(self) -> dict[int, PoolUse]:
        """KV group -> its blocks, without sentinels."""
        header = self.header
        groups = range(max(len(header.groups), 1)) if header else ()
        return {group: self._pool(group) for group in sorted({*groups, *self._blocks})}

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            self.see(envelope)

    def see(self, envelope: Envelope) -> None:
        self.last_step = max(self.last_step, envelope.step)
        match envelope.event:
            case StepScheduled() as event:
                self._scheduled(event)
            case TokensSampled() as event:
                self.sampled_tokens += len(event.tokens)
            case BlockAllocated() | BlockShared() as event:
                self._of(event.group).held.add(event.block)
            case BlockFreed() as event:
                self._of(event.group).held.discard(event.block)
            case BlockRegistered() as event:
                self._of(event.group).keys.setdefault(event.block, set()).add(event.key)
            case BlockUnregistered() as event:
                self._unregistered(event)
            case RequestAdded() as event:
                self._added(event)
            case RequestFinished() as event:
                self.finished += 1
                self._lives.pop(event.request, None)
            case RequestPreempted():
                self.preemptions += 1
            case RunStarted() as event:
                self.header = event
            case SpanDropped() as event:
                self.dropped_events += event.count
                self._blocks.clear()
            case _:
                pass

    def _of(self, group: int | None) -> _Blocks:
        return self._blocks.setdefault(group or 0, _Blocks())

    def _pool(self, group: int) -> PoolUse:
        blocks = self._blocks.get(group, _Blocks())
        sentinels = set(self.header.sentinel_blocks) if self.header else set()
        used = blocks.held - sentinels
        cached = blocks.keys.keys() - blocks.held - sentinels
        size = None if self.header is None else self.header.num_blocks - len(sentinels)
        free = None if size is None else size - len(used) - len(cached)
        return PoolUse(len(used), len(cached), free)

    def _added(self, event: RequestAdded) -> None:
        self.requests += 1
        self._lives[event.request] = _Life(event.parent is not None)
        if event.parent is None:
            self.prompt_tokens += len(event.prompt_tokens)

    def _unregistered(self, event: BlockUnregistered) -> None:
        self.evictions += event.reason == "evicted"
        keys = self._of(event.group).keys
        keys.get(event.block, set()).discard(event.key)
        if not keys.get(event.block):
            keys.pop(event.block, None)

    def _scheduled(self, event: StepScheduled) -> None:
        self.steps += any(event.scheduled)
        for name, computed, scheduled in zip(
            event.requests, event.computed, event.scheduled, strict=False
        ):
            life = self._lives.get(name)
            if life is None:
                continue
            if not life.is_further_sample:
                self.cached_tokens += max(computed - life.computed, 0)
            life.computed = max(life.computed, computed + scheduled)
