"""The memory account of a run: what its KV cache took, and what other ways would have taken.

It folds the events of blocks with the reducer and keeps running counts of what they change, so it
costs what each event touches; what is over is forgotten, so it holds what is alive. It relies on
the contract alone and reads any engine's trace.

A step counts with what is held while the device computes it: once its slots are written, and before
finished requests let go. Slots of rejected drafts count as written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    BlockUnregistered,
    Envelope,
    EpochChanged,
    Event,
    RequestAdded,
    RequestFinished,
    RequestRevised,
    RunStarted,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepScheduled,
    TokensSampled,
)
from .kv_footprint import Footprint, GroupFootprint
from .memory_report import Ask, Memory, Run, Series, report_of
from .pool_tally import NOTHING, PoolTally, Sample
from .reducer import apply
from .state import Block, Pool, State

_OPEN_STEPS = 8
"""How far back a late event still corrects the sample of its step."""

_LONGEST_TABLE = 1 << 22
"""An index past this is nonsense, and not worth a table of that length."""

_COMPUTED = ("prefill", "decode", "draft")
_NO_TOKENS = ("pad", "dummy")


class MemoryAccount:
    """`see` every event of a run in order, then ask for the `report`."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._others: set[int] = set()
        self._state = State()
        self._header: RunStarted | None = None
        self._footprint = Footprint.unknown_to_all()
        self._tallies: dict[int, PoolTally] = {}
        self._holds = Counter[str]()
        """Resident request -> how many blocks it holds."""
        self._reserved: dict[str, int] = {}
        """Resident request -> most tokens that it may come to, where known."""
        self._finished: set[str] = set()
        """Resident requests that have finished."""
        self._strangers: set[str] = set()
        """Those that held blocks and were never added."""
        self._longest = 0
        self._open: dict[int, tuple[Sample, int, int]] = {}
        """Step -> its sample, how many requests were resident, and how many tokens reserved."""
        self._closed: int | None = None
        """The last step that was counted for good."""
        self._series = {
            name: Series() for name in (*Sample._fields, "residents", "reserved_tokens")
        }
        self._seen: set[type[Event]] = set()

    def see(self, envelope: Envelope) -> None:
        """Count one event. Of several ranks, with a cache each, only the first one's count."""
        if self._rank is None:
            self._rank = envelope.rank
        if envelope.rank != self._rank:
            self._others.add(envelope.rank)
            return
        kind = type(envelope.event)
        self._seen.add(kind)
        transition = _TRANSITIONS.get(kind)
        if transition is not None:
            transition(self, envelope, envelope.event)

    def report(self, ask: Ask = Ask()) -> Memory:  # noqa: B008 -- frozen
        """The account so far, and an answer to what is asked besides."""
        for step in sorted(self._open):
            self._close(step)
        run = Run(
            header=self._header,
            footprint=self._footprint,
            series=self._series,
            handed_out={group: len(tally.handed_out) for group, tally in self._tallies.items()},
            longest=self._longest,
            strangers=len(self._strangers),
            seen=frozenset(self._seen),
        )
        memory = report_of(run, ask)
        if not self._others:
            return memory
        others = ", ".join(map(str, sorted(self._others)))
        told = f"what the caches of rank {others} took: this is the account of rank {self._rank}"
        return replace(memory, missing=(*memory.missing, told))

    # --- the run and its requests -----------------------------------------------------------------

    def _run_started(self, envelope: Envelope, event: RunStarted) -> None:
        # the free queue's order isn't asked for, and keeping it costs the pool's size
        apply(self._state, envelope._replace(event=replace(event, num_blocks=0)))
        self._header, self._footprint = event, Footprint.of(event)
        self._tallies.clear()
        self._forget_residents()

    def _span_dropped(self, envelope: Envelope, event: SpanDropped) -> None:
        apply(self._state, envelope)
        before, self._tallies = self._tallies, {}
        for group, tally in before.items():
            self._tally(group).handed_out |= tally.handed_out
        self._forget_residents()

    def _forget_residents(self) -> None:
        self._holds.clear()
        self._reserved.clear()
        self._finished.clear()

    def _request_added(self, envelope: Envelope, event: RequestAdded) -> None:
        apply(self._state, envelope)
        self._longest = max(self._longest, len(event.prompt_tokens))

    def _request_revised(self, envelope: Envelope, event: RequestRevised) -> None:
        before: dict[tuple[int, int], Block] = {}
        for group, pool in self._state.pools.items():
            table = _table(pool, event.request)
            pool.tables[event.request] = table
            before |= {(group, n): pool.block(n) for n in table if n is not None}
        apply(self._state, envelope)
        for (group, number), block in before.items():
            after = self._state.pool(group).block(number)
            self._tally(group).moved(number, block, after)
        for pool in self._state.pools.values():
            pool.tables.clear()
        length = max(event.tokens_kept, 0) + len(event.tokens or ())
        self._longest = max(self._longest, length)
        reserved = self._reserved.get(event.request)
        if reserved is not None and length > reserved:
            self._give_back(event.request)
            self._reserve(event.request, length)

    def _request_finished(self, envelope: Envelope, event: RequestFinished) -> None:
        self._finished.add(event.request)
        self._forget_if_over(event.request)

    def _tokens_sampled(self, envelope: Envelope, event: TokensSampled) -> None:
        self._longest = max(self._longest, max(event.positions, default=-1) + 1)

    # --- blocks -----------------------------------------------------------------------------------

    def _block_allocated(self, envelope: Envelope, event: BlockAllocated) -> None:
        former = self._state.pool(event.group).block(event.block).holders
        self._block_changed(envelope, event)
        for holder in former:  # only where counts are wrong
            self._let_go(holder.request)
        self._hold(event.request)

    def _block_shared(self, envelope: Envelope, event: BlockShared) -> None:
        self._block_changed(envelope, event)
        self._hold(event.request)

    def _block_released(self, envelope: Envelope, event: BlockReleased) -> None:
        pool = self._state.pool(event.group)
        holders = len(pool.block(event.block).holders)
        self._block_changed(envelope, event)
        if len(pool.block(event.block).holders) < holders:
            self._let_go(event.request)

    def _block_changed(self, envelope: Envelope, event: Any) -> None:
        pool = self._state.pool(event.group)
        before = pool.block(event.block)
        apply(self._state, _off_the_table(envelope))
        pool.free.clear()
        self._tally(event.group).moved(event.block, before, pool.block(event.block))

    def _slots_written(self, envelope: Envelope, event: SlotsWritten) -> None:
        size = self._footprint.block_size
        if size is not None and event.write not in _NO_TOKENS:
            masks: dict[int, int] = {}
            for slot in event.slots:
                if slot >= 0:
                    number = slot // size
                    masks[number] = masks.get(number, 0) | 1 << slot % size
            tally = self._tally(event.group)
            for number, mask in masks.items():
                tally.wrote(number, mask, self._holders(event.group, number))
        if event.write in _COMPUTED:
            self._sample(envelope, event)

    def _block_copied(self, envelope: Envelope, event: BlockCopied) -> None:
        """A copy is itself the write, also where its source is written by a step under way."""
        mask = (1 << min(max(event.slots, 0), self._footprint.block_size or 0)) - 1
        number = event.destination
        self._tally(event.group).wrote(number, mask, self._holders(event.group, number))

    def _block_scrubbed(self, envelope: Envelope, event: BlockScrubbed) -> None:
        self._tally(event.group).scrubbed(event.block, self._holders(event.group, event.block))

    def _epoch_changed(self, envelope: Envelope, event: EpochChanged) -> None:
        if event.what == "pool":
            for tally in self._tallies.values():
                tally.unwrote_all()

    def _holders(self, group: int | None, number: int) -> int:
        return len(self._state.pool(group).block(number).holders)

    def _tally(self, group: int | None) -> PoolTally:
        number = group or 0
        found = self._tallies.get(number)
        if found is None:
            found = self._tallies[number] = self._fresh_tally(number)
            for reserved in self._reserved.values():
                found.reserve(reserved)
        return found

    def _fresh_tally(self, group: int) -> PoolTally:
        of, header = self._footprint, self._header
        known = of.groups[group] if 0 <= group < len(of.groups) else None
        in_bytes = of.bytes_per_token is not None
        token = (known.bytes_per_token if known else 0) if in_bytes else 1
        sentinels = frozenset(header.sentinel_blocks) if header else frozenset[int]()
        return PoolTally(known or GroupFootprint(group=group), of.block_size, token or 0, sentinels)

    # --- residents: requests that hold blocks -----------------------------------------------------

    def _hold(self, request: str) -> None:
        self._holds[request] += 1
        if self._holds[request] > 1:
            return
        known = self._state.requests.get(request)
        if known is None:
            self._strangers.add(request)
            return
        added = known.added
        longest = max(len(added.prompt_tokens) + max(added.max_new_tokens, 0), len(known.tokens))
        self._reserve(request, longest)

    def _let_go(self, request: str) -> None:
        self._holds[request] -= 1
        if self._holds[request] <= 0:
            del self._holds[request]
            self._give_back(request)
            self._forget_if_over(request)

    def _reserve(self, request: str, tokens: int) -> None:
        self._reserved[request] = tokens
        for tally in self._tallies.values():
            tally.reserve(tokens)

    def _give_back(self, request: str) -> None:
        tokens = self._reserved.pop(request, 0)
        for tally in self._tallies.values():
            tally.give_back(tokens)

    def _forget_if_over(self, request: str) -> None:
        if request in self._finished and request not in self._holds:
            self._finished.discard(request)
            self._state.requests.pop(request, None)

    # --- steps ------------------------------------------------------------------------------------

    def _sample(self, envelope: Envelope, event: Event) -> None:
        """A step counts as it was last seen."""
        step, residents = envelope.step, len(self._holds)
        if self._closed is not None and step <= self._closed:
            return
        parts = (tally.sample(residents) for tally in self._tallies.values())
        self._open[step] = sum(parts, NOTHING), residents, sum(self._reserved.values())
        if len(self._open) > _OPEN_STEPS:
            self._close(min(self._open))

    def _close(self, step: int) -> None:
        sample, residents, tokens = self._open.pop(step)
        self._closed = step
        for series, value in zip(self._series.values(), (*sample, residents, tokens), strict=True):
            series.add(step, value)


def _off_the_table(envelope: Envelope) -> Envelope:
    """The same event at a negative index: the fold keeps block tables as tuples, which cost their
    length at every change, and leaves negative entries out. Holders stay told apart."""
    event = envelope.event
    if isinstance(event, BlockAllocated | BlockShared | BlockReleased) and event.index is not None:
        return envelope._replace(event=replace(event, index=-1 - event.index))
    return envelope


def _table(pool: Pool, request: str) -> tuple[int | None, ...]:
    """The request's block table, by what its blocks say of their holders."""
    places = {
        -1 - holder.table_index: number
        for number, block in pool.blocks.items()
        for holder in block.holders
        if holder.request == request and holder.table_index is not None
    }
    return tuple(places.get(i) for i in range(min(max(places, default=-1), _LONGEST_TABLE) + 1))


_TRANSITIONS: Mapping[type[Event], Callable[[MemoryAccount, Envelope, Any], None]] = {
    RunStarted: MemoryAccount._run_started,
    SpanDropped: MemoryAccount._span_dropped,
    RequestAdded: MemoryAccount._request_added,
    RequestRevised: MemoryAccount._request_revised,
    RequestFinished: MemoryAccount._request_finished,
    TokensSampled: MemoryAccount._tokens_sampled,
    BlockAllocated: MemoryAccount._block_allocated,
    BlockShared: MemoryAccount._block_shared,
    BlockReleased: MemoryAccount._block_released,
    BlockFreed: MemoryAccount._block_changed,
    BlockRegistered: MemoryAccount._block_changed,
    BlockUnregistered: MemoryAccount._block_changed,
    BlockCopied: MemoryAccount._block_copied,
    BlockScrubbed: MemoryAccount._block_scrubbed,
    EpochChanged: MemoryAccount._epoch_changed,
    SlotsWritten: MemoryAccount._slots_written,
    StepScheduled: MemoryAccount._sample,
    StepCompleted: MemoryAccount._sample,
}
