"""What a mask lets each query see, as sets of columns, and where each column's key lives.

A set of columns is one integer, column 0 its most significant bit, so a row of a dense mask is
compared in one step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from ...recorder.events import MaskBuilt
from .rows import Row

WEAKEST_FILL = -1e4
"""A finite fill above this lets masked keys keep a weight (0.3 % at -5)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which key each column of a dense mask stands for."""

    keys: str
    width: int
    stride: int
    """Bytes of a row: more than the keys need when it is padded, fewer when keys are left out."""
    rows: tuple[Row, ...]
    bases: tuple[int, ...]
    """concatenated: first column of each row's keys."""
    block_size: int

    def column(self, row: Row, position: int) -> int | None:
        """The column of one of the row's own keys."""
        if self.keys == "concatenated":
            return self.bases[row.number] + position
        if self.keys == "per_row":
            return position
        return row.slot_at(position, self.block_size)

    def slot(self, row: Row, column: int) -> tuple[int | None, int | None]:
        """(slot, own position or None) of the key that the row sees in that column."""
        if self.keys == "pool":
            return column, None
        if self.keys == "per_row":
            return row.slot_at(column, self.block_size), column
        owner = self._owner(column)
        if owner is None:
            return None, None
        position = column - self.bases[owner.number]
        own = position if owner is row else None
        return owner.slot_at(position, self.block_size), own

    def _owner(self, column: int) -> Row | None:
        for row, base in zip(self.rows, self.bases, strict=True):
            if base <= column < base + row.seq_len:
                return row
        return None


def has_rows_of(mask: MaskBuilt, rows: list[Row]) -> bool:
    """Whether the mask counts each row's queries as the build does, but for pads at the end."""
    given = len(mask.query_lens)
    return tuple(row.query_len for row in rows[:given]) == mask.query_lens[: len(rows)] and all(
        row.request is None for row in rows[given:]
    )


def layout_of(mask: MaskBuilt, rows: list[Row], num_slots: int, block_size: int) -> Layout | None:
    """None where the mask says nothing about columns, or its rows are not those of the build."""
    if mask.allowed is None or mask.keys is None or not has_rows_of(mask, rows):
        return None
    rows = rows[: len(mask.query_lens)]
    if not rows:
        return None
    lengths = [row.seq_len for row in rows]
    bases = (0, *accumulate(lengths))[: len(rows)]
    width = {"concatenated": sum(lengths), "per_row": max(lengths), "pool": num_slots}[mask.keys]
    queries = sum(mask.query_lens)
    if mask.form != "dense" or not queries or len(mask.allowed) % queries:
        return None
    return Layout(mask.keys, width, len(mask.allowed) // queries, tuple(rows), bases, block_size)


def allowed_rows(mask: MaskBuilt, row: Row, layout: Layout) -> list[int]:
    """The columns that each query of the row may see; those left out are hidden."""
    count, allowed = layout.stride, mask.allowed or b""
    spare = count * 8 - layout.width
    rows = (
        int.from_bytes(allowed[q * count : (q + 1) * count], "big")
        for q in range(row.start, row.start + row.query_len)
    )
    return [seen >> spare if spare >= 0 else seen << -spare for seen in rows]


def expected_rows(layout: Layout, row: Row, window: int | None) -> list[int]:
    """The columns that each query should see: its own keys up to itself, inside the window."""
    bits = _bits(layout, row)
    if window is not None and len(set(bits) - {0}) < sum(map(bool, bits)):
        return [_united(bits, query, window) for query in row.queries]
    seen, rows, start = 0, [], 0
    done = 0
    for query in row.queries:
        for position in range(done, min(query + 1, row.seq_len)):
            seen |= bits[position]
        done = max(done, query + 1)
        first = 0 if window is None else max(query - window + 1, 0)
        for position in range(start, min(first, len(bits))):
            seen &= ~bits[position]
        start = max(start, first)
        rows.append(seen)
    return rows


def _united(bits: list[int], query: int, window: int) -> int:
    """For a table that lists a block twice: one of its slots may be behind the window as one
    position and inside it as another."""
    seen = 0
    for bit in bits[max(query - window + 1, 0) : query + 1]:
        seen |= bit
    return seen


def _bits(layout: Layout, row: Row) -> list[int]:
    columns = (layout.column(row, position) for position in range(row.seq_len))
    return [
        0 if column is None or not 0 <= column < layout.width else 1 << (layout.width - 1 - column)
        for column in columns
    ]


def columns_of(bits: int, width: int) -> Iterator[int]:
    """The columns in a set, lowest first."""
    while bits:
        top = bits.bit_length() - 1
        yield width - 1 - top
        bits ^= 1 << top


def fill_in(dtype: str, fill: float) -> float | None:
    """A fill as the dtype holds it; None for a dtype that cannot hold it at all."""
    name = dtype.lower().removeprefix("torch.")
    if name in ("float16", "half", "fp16"):
        return _round_trip("e", fill)
    if "e4m3" in name:
        return max(fill, -448.0)  # saturates: e4m3 has no infinity
    if name.startswith(("int", "uint", "bool")):
        return None
    return fill


def _round_trip(code: str, value: float) -> float:
    try:
        return struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return float("-inf") if value < 0 else float("inf")
