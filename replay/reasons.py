"""Why a decision was wrong, in one clause, from what stood at that moment."""

from __future__ import annotations

from ..recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockReleased,
    BlockShared,
    Envelope,
    MaskBuilt,
)
from .findings import Finding
from .pieces import Pieces
from .provenance import common_length
from .requests import RequestState
from .state import State
from .timeline import Timeline
from .wording import counted, elided, ordinal, short_key
from .writes import Write

HOLDERS_SHOWN = 4


def reason(timeline: Timeline, root: Finding, pieces: Pieces) -> str:
    """What the culprit did although it must not; the finding's own words where the log gives
    no better ones."""
    if root.culprit_seq is None:
        return root.explanation
    culprit = timeline.at(root.culprit_seq)
    state = timeline.state_at(root.culprit_seq)
    return _reason(culprit, state, root, pieces) or root.explanation


def _reason(culprit: Envelope, state: State, root: Finding, pieces: Pieces) -> str | None:
    event = culprit.event
    match (root.fault_class, event):
        case ("F01", BlockShared()):
            although = _although(state, event, pieces)
            shared = f"block {event.block} was shared with request {event.request}"
            return f"{shared} although {although}" if although else None
        case ("F06", BlockFreed()):
            holders = state.pool(event.group).block(event.block).holders
            names = [holder.request for holder in holders]
            held = elided(names, HOLDERS_SHOWN)
            return f"block {event.block} was freed while {held} still held it" if names else None
        case ("F07", BlockReleased()):
            where = "" if event.index is None else f" at index {event.index}"
            gave_up = f"request {event.request} gave up block {event.block}"
            return f"{gave_up} and its block table kept it{where}"
        case ("F02", BlockAllocated()):
            keys = _keys_left(state, event)
            stayed = f"{counted(len(keys), 'key')} ({elided(keys, 2)}) stayed in the prefix index"
            given = f"block {event.block} was reused for request {event.request}"
            return f"{given} and {stayed}" if keys else None
        case ("F14", MaskBuilt()) if root.row is not None and root.key is not None:
            return _mask_index(state, event, root)
    return None


def _mask_index(state: State, event: MaskBuilt, root: Finding) -> str:
    lets = "lets query {} see" if root.actual else "hides from query {}"
    row = f"the mask of row {root.row} ({root.victim or 'a pad row'})"
    return f"{row} {lets.format(root.query)} key {root.key}{_whose_slot(state, event, root)}"


def _whose_slot(state: State, event: MaskBuilt, root: Finding) -> str:
    pool = state.pool(event.group)
    if root.slot is None or pool.block_size < 1:
        return ""
    number = root.slot // pool.block_size
    holders = list(dict.fromkeys(holder.request for holder in pool.block(number).holders))
    held = f" of {elided(holders, HOLDERS_SHOWN)}" if holders else ", which nobody holds"
    return f", slot {root.slot} in block {number}{held}"


def _keys_left(state: State, event: BlockAllocated) -> list[str]:
    index = state.pool(event.group).index
    return [
        short_key(key)
        for key, entries in index.items()
        if any(entry.block == event.block for entry in entries)
    ]


def _although(state: State, event: BlockShared, pieces: Pieces) -> str | None:
    """What differs between the reader of a shared block and who wrote it."""
    reader = state.requests.get(event.request)
    pool = state.pool(event.group)
    writes = [state.writer(event.group, slot) for slot in pool.slots_of(event.block)]
    first = event.index * pool.block_size
    for offset, write in enumerate(writes):
        writer = state.requests.get(write.request or "") if write else None
        if reader is None or write is None or writer is None or write.request == event.request:
            continue
        found = _difference(reader, writer, write, first + offset, offset, pieces)
        if found is not None:
            return found
    return None


def _difference(
    reader: RequestState,
    writer: RequestState,
    write: Write,
    position: int,
    offset: int,
    pieces: Pieces,
) -> str | None:
    """`position` is the slot's in the reader, `offset` its place in the block."""
    mine, theirs = reader.added, writer.added
    if mine.tenant != theirs.tenant:
        return f"{mine.request} is another tenant's than {theirs.request}, who wrote it"
    if mine.adapter != theirs.adapter:
        return f"{mine.request} uses another adapter than {theirs.request}, who wrote it"
    if write.position != position:
        return (
            f"its first slot is position {write.position - offset} of {theirs.request}, who wrote "
            f"it, and position {position - offset} of {mine.request}"
        )
    written = writer.tokens_at(write.revision)
    same = common_length(reader.tokens, written)
    if same > position or same >= min(len(reader.tokens), len(written)):
        return None
    which = (
        f"position {same} is {pieces.token(reader.tokens[same])} in {mine.request}, "
        f"{pieces.token(written[same])} in what {theirs.request} wrote"
    )
    first = position - offset
    if same < first:
        return f"what comes before it differs: {which}"
    return f"its {ordinal(same - first + 1)} token differs: {which}"
