"""Whose data is in the slots that a row reads.

A row reads through its built table, whatever else is wrong with it. What it finds in a slot is its
own, or legally shared (held through a share, with a context that is equal), or foreign, or not
written in the block's present generation at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..writes import Write
from .base import Violation
from .case import Case, Hold, Proof
from .context import Mismatch
from .rows import Row, visible_range


@dataclass(frozen=True, slots=True)
class SlotProblem:
    """A slot that a row reads and may not."""

    kind: Literal["unwritten", "foreign"]
    slot: int
    position: int | None
    """The reader's token that the slot stands for; None when only a mask shows it."""
    block: int
    generation: int
    write: Write | None
    """What the slot holds; of an older generation, or nothing, when `unwritten`."""
    hold: Hold | None
    mismatch: Mismatch | None
    query: int | None = None
    key: int | None = None
    cause: Violation | None = None

    def leaks_to(self, request: str) -> bool:
        """Whether what the slot holds is another request's data, or a pad's."""
        return self.write is not None and self.write.request != request


def read_row(case: Case, row: Row) -> None:
    """Fill `row.problems` with what it reads by its length, and remember what is proved."""
    request, size = row.request, case.state.pool(row.group).block_size
    if request is None or size < 1 or not case.is_judged(request):
        return
    span = visible_range(row, case.state, size)
    proved = case.proved_blocks(row)
    for index in range(max(span.start // size, proved), len(row.table)):
        if row.table[index] >= 0:
            inside = range(max(index * size, span.start), min((index + 1) * size, span.stop))
            _read_block(case, row, request, index, inside)
    if not row.problems:
        _remember_proof(case, row, request, size, proved)


def _read_block(case: Case, row: Row, request: str, index: int, positions: range) -> None:
    """Most slots are the request's own, of this generation: only the others are looked into."""
    pool, group, pending = case.state.pool(row.group), row.group, case.pending
    number = row.table[index]
    generation = pool.block(number).generation
    shift = (number - index) * pool.block_size
    slots, log = pool.slots, case.state.log
    for position in positions:
        slot = position + shift
        if (group, slot) in pending:
            writes = pending[group, slot]
            write = writes[0] if len(writes) == 1 else None
        else:
            at = slots.get(slot)
            write = None if at is None else log[at]
        if write is None or write.request != request or write.generation != generation:
            row.problems.extend(problems_of(case, row, request, slot, position))


def problems_of(
    case: Case, row: Row, request: str, slot: int, position: int | None
) -> Iterator[SlotProblem]:
    """What is wrong with reading this slot; nothing when it is legal."""
    pool = case.state.pool(row.group)
    number = slot // pool.block_size
    block = pool.block(number)
    writes = case.contents(row.group, slot)
    present = [w for w in writes if w.generation == block.generation]
    hold = hold_of(case, row.group, request, number, position, pool.block_size)
    if not present:
        if block.is_known:
            last = writes[-1] if writes else None
            yield SlotProblem(
                "unwritten", slot, position, number, block.generation, last, hold, None
            )
        return
    for write in present:
        if write.request == request:
            continue
        is_legal, mismatch = judge_write(case, row.group, request, slot, write, hold)
        if not is_legal:
            yield SlotProblem(
                "foreign", slot, position, number, block.generation, write, hold, mismatch
            )


def hold_of(
    case: Case, group: int, request: str, block: int, position: int | None, size: int
) -> Hold | None:
    """The request's hold of that block: at the index of `position`, or anywhere without one."""
    if position is not None:
        hold = case.hold(group, request, position // size)
        return hold if hold is not None and hold.block == block else None
    for index in case.held_indices(group, request, block):
        hold = case.hold(group, request, index)
        if hold is not None:
            return hold
    return None


def judge_write(
    case: Case, group: int, request: str, slot: int, write: Write, hold: Hold | None
) -> tuple[bool, Mismatch | None]:
    """Whether the request may read what another one wrote there, and if not, what differs.

    It may when it holds the block, the two are linked by a share of this generation (or the slot
    was copied or loaded for it), and the context of the token is the same.
    """
    if not case.allocations and write.request is not None:
        return True, None  # who holds what is not told: nothing can be held against a reader
    if hold is None or write.request is None:
        return False, None
    size = case.state.pool(group).block_size
    is_moved = write.kind in ("copy", "transfer")
    is_linked = hold.is_share or (group, hold.block, hold.generation) in case.shared_generations
    if not (is_moved or is_linked):
        return False, None
    epoch = hold.epoch if hold.is_share and not is_moved else None
    position = hold.at * size + slot % size
    mismatch = case.context.mismatch(case.state, write, request, position, epoch)
    return mismatch is None, mismatch


def _remember_proof(case: Case, row: Row, request: str, size: int, proved: int) -> None:
    """Full blocks whose writes are all logged need no second look until something touches them."""
    count = proved
    while (count + 1) * size <= row.seq_len and count < len(row.table):
        start = row.table[count] * size
        if any((row.group, slot) in case.pending for slot in range(start, start + size)):
            break
        count += 1
    if count and case.state.seq is not None:
        case.proofs[row.group, request] = Proof(row.table[:count], case.state.seq)
