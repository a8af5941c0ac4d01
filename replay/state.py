"""What a run looks like after any event: the value that `reducer.apply` advances.

Every collection holds immutable values that are replaced, never changed in place, so `copy` is a
few shallow copies and a keyframe shares almost everything with its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from ..recorder.events import (
    InputsBuilt,
    MaskBuilt,
    RunEnded,
    RunStarted,
    Scalar,
    StepScheduled,
    TransferStarted,
)
from .requests import RequestState
from .writes import Epoch, Write, WriteLog


class Holder(NamedTuple):
    request: str
    table_index: int | None
    """Logical index in the request's table."""


class Block(NamedTuple):
    """A physical block. Before its first allocation it is generation 0 and free."""

    generation: int = 0
    ref_count: int = 0
    """As the events say, which under a fault is not the number of holders."""
    holders: tuple[Holder, ...] = ()
    keys: tuple[Scalar, ...] = ()
    """Under which it was registered in this generation, oldest first."""
    is_free: bool = True
    """Handed back since it was last held."""
    is_known: bool = True
    """False after a dropped span, until allocated anew."""


class IndexEntry(NamedTuple):
    """One block under one key of the prefix index."""

    block: int
    generation: int
    seq: int
    request: str | None
    parent_key: Scalar | None
    tokens: tuple[int, ...]


class Build(NamedTuple):
    seq: int
    event: InputsBuilt


class BuiltMask(NamedTuple):
    seq: int
    event: MaskBuilt


class StepState(NamedTuple):
    """One step from its scheduling to its completion; seqs are None until it gets there."""

    scheduled: StepScheduled | None = None
    scheduled_seq: int | None = None
    builds: tuple[Build, ...] = ()
    masks: tuple[BuiltMask, ...] = ()
    dispatched_seq: int | None = None
    written_seq: int | None = None
    """Of the first `SlotsWritten` by a row of the step."""
    completed_seq: int | None = None


class Transfer(NamedTuple):
    seq: int
    event: TransferStarted
    contents: tuple[tuple[Write | None, ...], ...] = ()
    """Of a store: what each block held, slot by slot, when it began."""


class AwaitedCopy(NamedTuple):
    """A slot to be copied once the step under way has written it: the device copies after it."""

    slot: int
    """The destination."""
    seq: int
    step: int
    source_generation: int
    generation: int
    """Of the destination's block."""


@dataclass(slots=True)
class Pool:
    """The blocks of one KV group."""

    block_size: int
    sentinels: frozenset[int] = frozenset()
    blocks: dict[int, Block] = field(default_factory=dict)
    unlisted: Block = field(default_factory=Block)
    """What a block is that no event has named."""
    free: list[int] = field(default_factory=list)
    """The queue of free blocks, next one first; under a fault a block may stand in it twice."""
    slots: dict[int, int] = field(default_factory=dict)
    """Slot -> index of its last write in the log."""
    tables: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """The block table of each request, as its engine keeps it."""
    kept: dict[tuple[str, int], int] = field(default_factory=dict)
    """Table entries that a trim decided to keep, until the release that it belongs to."""
    index: dict[Scalar, tuple[IndexEntry, ...]] = field(default_factory=dict)
    unfreed: dict[int, int] = field(default_factory=dict)
    """Obligation: block whose count reached zero -> seq of that release."""
    uncopied: dict[int, int] = field(default_factory=dict)
    """Obligation: block that replaced a table entry -> seq of its allocation."""
    awaited: dict[int, tuple[AwaitedCopy, ...]] = field(default_factory=dict)
    """Source slot -> the copies that wait for its write."""

    def block(self, number: int) -> Block:
        return self.blocks.get(number, self.unlisted)

    def table(self, request: str) -> tuple[int | None, ...]:
        return self.tables.get(request, ())

    def slots_of(self, block: int) -> range:
        return range(block * self.block_size, (block + 1) * self.block_size)

    def copy(self) -> Pool:
        return Pool(
            self.block_size,
            self.sentinels,
            self.blocks.copy(),
            self.unlisted,
            self.free.copy(),
            self.slots.copy(),
            self.tables.copy(),
            self.kept.copy(),
            self.index.copy(),
            self.unfreed.copy(),
            self.uncopied.copy(),
            self.awaited.copy(),
        )


@dataclass(slots=True)
class State:
    """A run after the event `seq`. Before the first event `seq` is None."""

    header: RunStarted | None = None
    ended: RunEnded | None = None
    seq: int | None = None
    step: int = 0
    pools: dict[int, Pool] = field(default_factory=dict)
    requests: dict[str, RequestState] = field(default_factory=dict)
    steps: dict[int, StepState] = field(default_factory=dict)
    """Steps that are open, and the last few that completed."""
    log: WriteLog = field(default_factory=WriteLog)
    weights: Scalar | None = None
    adapters: dict[Scalar, Scalar] = field(default_factory=dict)
    """Adapter -> its epoch."""
    pool_epoch: Scalar | None = None
    transfers: dict[Scalar, Transfer] = field(default_factory=dict)
    """Those that have started and not finished."""
    stored: dict[tuple[int, Scalar], tuple[Write | None, ...]] = field(default_factory=dict)
    """(group, key) -> what its block held, slot by slot, when it was stored in another tier."""
    restored_seq: int | None = None
    """Where the trace's ring begins: of older events it has only a few."""
    rank: int = 0
    """Whose state this is: that of the last event."""
    aside: dict[int, State] = field(default_factory=dict)
    """Rank -> its state, of the other ranks of a merged trace."""

    def pool(self, group: int | None = None) -> Pool:
        """The pool of a KV group; an unknown group has one as the header describes it."""
        number = group or 0
        found = self.pools.get(number)
        if found is None:
            found = self.pools[number] = fresh_pool(self.header)
        return found

    def writer(self, group: int | None, slot: int) -> Write | None:
        """The last write of a slot, in whatever generation of its block."""
        index = self.pool(group).slots.get(slot)
        return None if index is None else self.log[index]

    def is_written(self, group: int | None, slot: int) -> bool:
        """Whether the slot was written in its block's present generation."""
        pool = self.pool(group)
        write = self.writer(group, slot)
        return (
            write is not None
            and pool.block_size > 0
            and write.generation == pool.block(slot // pool.block_size).generation
        )

    def last_writer_of_block(self, group: int | None, block: int) -> Write | None:
        pool = self.pool(group)
        indices = [pool.slots[s] for s in pool.slots_of(block) if s in pool.slots]
        return self.log[max(indices)] if indices else None

    def window(self, group: int | None) -> int | None:
        """The sliding window of a KV group, in tokens."""
        groups = self.header.groups if self.header else []
        number = group or 0
        entry: Any = groups[number] if 0 <= number < len(groups) else None
        window = entry.get("window") if isinstance(entry, dict) else None
        return window if isinstance(window, int) and window > 0 else None

    def stored_under(self, group: int | None, key: Scalar) -> tuple[Write | None, ...] | None:
        """What another tier holds under that key, or will once a store under way is done."""
        known = self.stored.get((group or 0, key))
        if known is not None:
            return known
        for transfer in self.transfers.values():
            event = transfer.event
            if event.direction == "store" and (event.group or 0) == (group or 0):
                for stored, contents in zip(event.keys, transfer.contents, strict=False):
                    if stored == key:
                        return contents
        return None

    def epoch_of(self, request: str | None) -> Epoch:
        """The epoch in which this request computes now."""
        known = self.requests.get(request) if request is not None else None
        adapter = known.added.adapter if known else None
        own = None if adapter is None else self.adapters.get(adapter)
        return Epoch(self.weights, own, self.pool_epoch)

    def unfinished(self) -> Iterator[tuple[str, RequestState]]:
        return ((n, r) for n, r in self.requests.items() if not r.is_finished)

    def copy(self) -> State:
        """An independent state: advancing one leaves the other as it is."""
        return State(
            self.header,
            self.ended,
            self.seq,
            self.step,
            {group: pool.copy() for group, pool in self.pools.items()},
            self.requests.copy(),
            self.steps.copy(),
            self.log.copy(),
            self.weights,
            self.adapters.copy(),
            self.pool_epoch,
            self.transfers.copy(),
            self.stored.copy(),
            self.restored_seq,
            self.rank,
            {rank: state.copy() for rank, state in self.aside.items()},
        )

    def turn_to(self, rank: int) -> None:
        """Show another rank, whose blocks and requests are its own; this one waits aside."""
        aside = self.aside
        shown = State(*(getattr(self, part.name) for part in fields(self)))
        shown.aside = {}
        other = aside.pop(rank, None) or State(rank=rank)
        aside[self.rank] = shown
        for part in fields(self):
            setattr(self, part.name, getattr(other, part.name))
        self.aside = aside

    @property
    def is_restored(self) -> bool:
        """Whether the last event gave the state."""
        return self.restored_seq is not None and self.restored_seq == self.seq

    def become(self, other: State, seq: int) -> None:
        """Take over all of another one but its header, its rank and where it stands."""
        header, rank, aside = self.header, self.rank, self.aside
        for part in fields(self):
            setattr(self, part.name, getattr(other, part.name))
        self.header, self.seq, self.restored_seq = header, seq, seq
        self.rank, self.aside = rank, aside

    def summary(self) -> dict[str, Any]:
        """What an engine can compare with itself, as plain values.

        `tokens` of unfinished requests; and of each KV group's pool, the parts named `blocks@1` and
        so on past the first group: `blocks`: (generation, ref_count, sorted holders, key or None)
        each; `free`: the queue; `tables` of unfinished requests; `index`: key -> sorted blocks.
        """
        parts: dict[str, Any] = {"tokens": {name: r.tokens for name, r in self.unfinished()}}
        for group in sorted(self.pools) or [0]:
            parts |= {part_of(n, group): v for n, v in self._summary_of_pool(group).items()}
        return parts

    def _summary_of_pool(self, group: int) -> dict[str, Any]:
        pool = self.pool(group)
        count = self.header.num_blocks if self.header else 0
        tables = {name: _stripped(pool.table(name)) for name, _ in self.unfinished()}
        return {
            "blocks": tuple(_comparable(pool.block(i)) for i in range(count)),
            "free": tuple(pool.free),
            "tables": {name: table for name, table in tables.items() if table},
            "index": {
                key: tuple(sorted(entry.block for entry in entries))
                for key, entries in pool.index.items()
            },
        }


def part_of(name: str, group: int) -> str:
    """How `State.summary` calls a part of a KV group's pool."""
    return f"{name}@{group}" if group else name


def fresh_pool(header: RunStarted | None) -> Pool:
    """Every block free, in order, but for the sentinels."""
    if header is None:
        return Pool(block_size=0, unlisted=Block(is_known=False))
    sentinels = frozenset(header.sentinel_blocks)
    return Pool(
        block_size=max(header.block_size, 0),
        sentinels=sentinels,
        free=[b for b in range(header.num_blocks) if b not in sentinels],
    )


def _comparable(block: Block) -> tuple[int, int, tuple[tuple[str, int | None], ...], Scalar | None]:
    holders = sorted(((h.request, h.table_index) for h in block.holders), key=repr)
    return (
        block.generation,
        block.ref_count,
        tuple(holders),
        block.keys[-1] if block.keys else None,
    )


def _stripped(table: tuple[int | None, ...]) -> tuple[int | None, ...]:
    end = len(table)
    while end and table[end - 1] is None:
        end -= 1
    return table[:end]
