"""Which switches a bisection throws, one at a time, as in a laboratory notebook.

Three are thrown always. The others only where the recording shows the mechanism at work: without
it the run would be the recorded one again, and say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..engine.config import BadSwitch, EngineConfig
from ..recorder.events import (
    BlockAllocated,
    DraftVerified,
    Envelope,
    GraphReplayed,
    RequestAdded,
    RequestPreempted,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TransferStarted,
)

Switches = Mapping[str, Any]

ALWAYS: Mapping[str, Switches] = {
    "serial": {"max_num_seqs": 1},
    "no-prefix-cache": {"prefix_cache": False},
    "no-continuous-batching": {"continuous_batching": False},
}

MOST_BLOCKS = 16
"""A pool in which nothing is handed out twice may be this many times the recorded one: memory for
more is not there, and a stale block is handed out late enough."""


@dataclass(slots=True)
class _Seen:
    """What a recording shows of each mechanism."""

    block_size: int
    has_batches: bool = False
    has_chunks: bool = False
    has_reuse: bool = False
    overlaps: bool = False
    kinds: set[type] | None = None
    blocks_wanted: int = 0
    """Enough for all requests at once, none sharing with another."""

    @classmethod
    def of(cls, block_size: int, envelopes: Iterable[Envelope]) -> _Seen:
        seen = cls(block_size)
        kinds: set[type] = set()
        handed: set[tuple[int, int]] = set()
        reached: dict[str, int] = {}
        dispatched = completed = 0
        for envelope in envelopes:
            event = envelope.event
            kinds.add(type(event))
            match event:
                case RequestAdded():
                    length = len(event.prompt_tokens) + event.max_new_tokens
                    seen.blocks_wanted += -(-length // max(block_size, 1)) + 1
                case BlockAllocated():
                    block = event.group or 0, event.block
                    seen.has_reuse |= block in handed
                    handed.add(block)
                case StepScheduled():
                    seen._scheduled(event, reached)
                case StepDispatched():
                    seen.overlaps |= dispatched > completed
                    dispatched = max(dispatched, envelope.step)
                case StepCompleted():
                    completed = max(completed, envelope.step)
                case _:
                    pass
        seen.kinds = kinds
        return seen

    def _scheduled(self, event: StepScheduled, reached: dict[str, int]) -> None:
        """A row that goes on with a prompt where another step left off."""
        self.has_batches |= len(event.requests) > 1
        rows = zip(event.requests, event.computed, event.scheduled, event.phases, strict=False)
        for request, computed, count, phase in rows:
            is_prefill = phase == "prefill"
            self.has_chunks |= is_prefill and 0 < computed == reached.get(request)
            if is_prefill:
                reached[request] = computed + count
            else:
                reached.pop(request, None)

    def shows(self, kind: type) -> bool:
        return kind in (self.kinds or ())


def toggles_for(config: EngineConfig, envelopes: Sequence[Envelope]) -> dict[str, Switches]:
    """Name -> the fields of the configuration that it replaces, those that may go together with
    the recorded ones, in the order in which they are tried."""
    seen = _Seen.of(config.block_size, envelopes)
    wanted = {**ALWAYS, **_present(config, seen)}
    return {name: switches for name, switches in wanted.items() if _is_valid(config, switches)}


def _present(config: EngineConfig, seen: _Seen) -> dict[str, Switches]:
    found: dict[str, Switches] = {}
    if config.layout != "packed":
        found["packed"] = {"layout": "packed"}
    elif seen.has_batches:
        found["no-packing"] = {"layout": "padded-right"}
    if seen.has_reuse:
        most = max(config.num_blocks * MOST_BLOCKS, config.num_blocks + 1)
        enough = max(seen.blocks_wanted, config.num_blocks + 1)
        found["no-block-reuse"] = {"num_blocks": min(enough, most), "reuse": "first-freed"}
    if seen.has_chunks:
        found["no-chunked-prefill"] = {"chunked_prefill": False}
    if seen.shows(RequestPreempted):
        found["no-preemption"] = {"preemption": False}
    if seen.shows(GraphReplayed):
        found["no-persistent-buffers"] = {"persistent_buffers": False}
    if seen.shows(DraftVerified):
        found["no-speculation"] = {"speculation": 0}
    if seen.overlaps:
        found["one-step-in-flight"] = {"steps_in_flight": 1}
    if seen.shows(TransferStarted):
        found["no-host-tier"] = {"host_blocks": 0}
    return found


def _is_valid(config: EngineConfig, switches: Switches) -> bool:
    """Whether the engine can honour them together, and they change anything."""
    try:
        return replace(config, **switches) != config or switches in ALWAYS.values()
    except BadSwitch:
        return False
