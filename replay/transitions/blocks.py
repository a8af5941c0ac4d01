"""Transitions of blocks: who holds them, under which keys, in which tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...recorder.decision import DecisionId
from ...recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    BlockUnregistered,
    DecisionMade,
    Envelope,
)
from ..state import AwaitedCopy, Block, Holder, IndexEntry, Pool, State

_LONGEST_TABLE = 1 << 22
"""An index past this is nonsense, and not worth a table of that length."""


def block_allocated(state: State, envelope: Envelope, event: BlockAllocated) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    pool.blocks[event.block] = Block(
        generation=block.generation + 1,
        ref_count=1,
        holders=(Holder(event.request, event.index),),
        is_free=False,
    )
    _leave_queue(pool, event.block)
    replaced = _put(pool, event.request, event.index, event.block)
    pool.unfreed.pop(event.block, None)
    pool.uncopied.pop(event.block, None)
    if replaced is not None and replaced != event.block:
        pool.uncopied[event.block] = envelope.seq


def block_shared(state: State, envelope: Envelope, event: BlockShared) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    pool.blocks[event.block] = block._replace(
        ref_count=event.ref_count,
        holders=(*block.holders, Holder(event.request, event.index)),
        is_free=False,
    )
    if event.ref_count == 1:
        _leave_queue(pool, event.block)
    _put(pool, event.request, event.index, event.block)
    pool.unfreed.pop(event.block, None)


def block_released(state: State, envelope: Envelope, event: BlockReleased) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    holder = holder_released(block, event)
    holders = list(block.holders)
    if holder is not None:
        holders.remove(holder)
    pool.blocks[event.block] = block._replace(ref_count=event.ref_count, holders=tuple(holders))
    index = event.index if holder is None else holder.table_index
    if index is not None:
        _clear(pool, event.request, index, event.block)
    if not holders and not block.is_free:
        pool.unfreed.setdefault(event.block, envelope.seq)


def block_freed(state: State, envelope: Envelope, event: BlockFreed) -> None:
    pool = state.pool(event.group)
    pool.blocks[event.block] = pool.block(event.block)._replace(is_free=True)
    pool.free.append(event.block)
    pool.unfreed.pop(event.block, None)


def block_registered(state: State, envelope: Envelope, event: BlockRegistered) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    entry = IndexEntry(
        event.block, block.generation, envelope.seq, event.request, event.parent_key, event.tokens
    )
    others = tuple(e for e in pool.index.get(event.key, ()) if e.block != event.block)
    pool.index[event.key] = (*others, entry)
    keys = tuple(key for key in block.keys if key != event.key)
    pool.blocks[event.block] = block._replace(keys=(*keys, event.key))


def block_unregistered(state: State, envelope: Envelope, event: BlockUnregistered) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    drop_entry(pool, event.key, event.block)
    if event.key in block.keys:
        keys = tuple(key for key in block.keys if key != event.key)
        pool.blocks[event.block] = block._replace(keys=keys)


def block_copied(state: State, envelope: Envelope, event: BlockCopied) -> None:
    """The copied slots keep their first writer; what was never written stays unwritten, unless a
    step under way is about to write it: the copy runs behind that step."""
    pool = state.pool(event.group)
    source, destination = pool.block(event.source), pool.block(event.destination)
    pool.uncopied.pop(event.destination, None)
    under_way = _mapped_under_way(state, event.group or 0, envelope.step)
    for offset in range(min(max(event.slots, 0), pool.block_size)):
        slot = event.destination * pool.block_size + offset
        origin = event.source * pool.block_size + offset
        write = state.writer(event.group, origin)
        if origin in under_way:
            due = AwaitedCopy(
                slot, envelope.seq, envelope.step, source.generation, destination.generation
            )
            pool.awaited[origin] = (*pool.awaited.get(origin, ()), due)
        if write is None:
            pool.slots.pop(slot, None)
            continue
        is_present = write.generation == source.generation
        pool.slots[slot] = state.log.append(
            write._replace(
                slot=slot,
                seq=envelope.seq,
                step=envelope.step,
                kind="copy",
                generation=destination.generation if is_present else None,
            )
        )


def _mapped_under_way(state: State, group: int, step: int) -> set[int]:
    """The slots that earlier steps were dispatched to write, and have not written yet."""
    return {
        slot
        for number, under_way in state.steps.items()
        if number < step and under_way.dispatched_seq is not None and under_way.written_seq is None
        for build in under_way.builds
        if (build.event.group or 0) == group
        for slot in build.event.slot_mapping
    }


def block_scrubbed(state: State, envelope: Envelope, event: BlockScrubbed) -> None:
    pool = state.pool(event.group)
    for slot in pool.slots_of(event.block):
        pool.slots.pop(slot, None)


def decision_made(state: State, envelope: Envelope, event: DecisionMade) -> None:
    """A trim that keeps a block leaves it in the table although it is released next."""
    if event.about != "trim" or event.request is None or not isinstance(event.choice, Mapping):
        return
    index, kept = event.choice.get("index"), event.choice.get("kept")
    if isinstance(index, int) and isinstance(kept, int):
        pool = state.pool(_group_of(event.decision))
        _put(pool, event.request, index, kept)
        pool.kept[event.request, index] = kept


def _group_of(decision: str) -> int:
    """The KV group that a decision's id names; ids that aren't ours name none."""
    try:
        return DecisionId.parse(decision).group
    except ValueError:
        return 0


def holder_released(block: Block, event: BlockReleased) -> Holder | None:
    """Which hold a release gives up; None when the request has none there."""
    for holder in block.holders:
        if holder.request == event.request and event.index in (None, holder.table_index):
            return holder
    return None


def _put(pool: Pool, request: str, index: int, block: int) -> int | None:
    """Set a table entry; returns the block that it replaces."""
    pool.kept.pop((request, index), None)
    if index < 0 or index > _LONGEST_TABLE:
        return None
    table = pool.table(request)
    before = table[index] if index < len(table) else None
    padded = table + (None,) * (index - len(table))
    pool.tables[request] = (*padded[:index], block, *padded[index + 1 :])
    return before


def _clear(pool: Pool, request: str, index: int, block: int) -> None:
    table = pool.table(request)
    kept = pool.kept.pop((request, index), None)
    if kept is None and 0 <= index < len(table) and table[index] == block:
        pool.tables[request] = (*table[:index], None, *table[index + 1 :])


def _leave_queue(pool: Pool, block: int) -> None:
    if block in pool.free:
        pool.free.remove(block)


def drop_entry(pool: Pool, key: Any, block: int) -> None:
    rest = tuple(entry for entry in pool.index.get(key, ()) if entry.block != block)
    if rest:
        pool.index[key] = rest
    else:
        pool.index.pop(key, None)
