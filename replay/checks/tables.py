"""What is wrong with the block table of a row, judged when it is built.

Judged then and not at dispatch: a block given up in between is another rule's business
(free in flight).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .base import Culprit
from .case import Case
from .rows import Row, visible_range


class BadEntry(NamedTuple):
    """A table entry that the request has no business with."""

    at: int
    """Its index."""
    block: int | None
    """None for a hole, or where the table is too short."""
    kind: Literal["not-held", "stale", "past-end"]
    release: Culprit | None
    """The release after which the table kept the entry."""


def judge_table(case: Case, row: Row) -> tuple[BadEntry, ...]:
    """Entries that are wrong, in order; empty for pads and for requests that nobody knows."""
    size = case.state.pool(row.group).block_size
    if row.request is None or size < 1 or row.request not in case.state.requests:
        return ()
    if not case.allocations:
        return ()  # an engine that logs no allocations: nobody holds anything
    length = row.seq_len if row.true_len is None else min(row.seq_len, row.true_len)
    first = visible_range(row, case.state, size).start // size
    needed = -(-length // size)
    if _is_plainly_right(case, row, first, needed):
        return ()
    inside = (_judge_needed(case, row, row.request, i) for i in range(first, needed))
    outside = (
        _judge_other(case, row, row.request, i)
        for i in range(len(row.table))
        if not first <= i < needed
    )
    return tuple(bad for bad in (*inside, *outside) if bad is not None)


def _is_plainly_right(case: Case, row: Row, first: int, needed: int) -> bool:
    held = case.held_tables.get((row.group, str(row.request)), [])
    return (
        first == 0
        and len(row.table) == needed
        and -1 not in row.table  # given up, and still needed
        and list(row.table) == held[:needed]
        and not case.stale_holds
    )


def _judge_needed(case: Case, row: Row, request: str, index: int) -> BadEntry | None:
    entry = row.table[index] if index < len(row.table) else -1
    hold = case.hold(row.group, request, index)
    if hold is not None and hold.block == entry:
        return None
    return _bad(case, row, request, index, entry, "not-held")


def _judge_other(case: Case, row: Row, request: str, index: int) -> BadEntry | None:
    """Past the end, or wholly outside the window: a hole, a sentinel, or still held."""
    entry = row.table[index]
    pool = case.state.pool(row.group)
    if entry < 0 or entry in pool.sentinels or case.is_holder(row.group, request, entry):
        return None
    return _bad(case, row, request, index, entry, "past-end")


def _bad(
    case: Case,
    row: Row,
    request: str,
    index: int,
    entry: int,
    kind: Literal["not-held", "past-end"],
) -> BadEntry:
    if entry < 0:
        return BadEntry(index, None, kind, None)
    stale = case.stale_hold(row.group, request, index)
    if stale is not None and stale.block == entry:
        return BadEntry(index, entry, "stale", None)
    return BadEntry(index, entry, kind, case.kept_release(row.group, request, index, entry))
