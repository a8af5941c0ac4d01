"""Block tables as changes.

A row of `InputsBuilt.block_tables` is stored in full or as a change to its *base*: a row of an
earlier event that is stored in full there. So any event is read with one look at each base, never
along a chain. A row is written in full again once its changes have cost as much as that.

A row made from its base is: `holes` times -1, then the base's entries from there on but for the
last `cut`, then a tail. Any table at all can be written, broken ones too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from .arrays import WrongType, little_endian, pack_ints, unpack_ints

Row = tuple[int, ...]
Bases = Callable[[int], Sequence[Row | None]]
"""seq of an InputsBuilt -> its rows, None for those that it doesn't hold in full."""

_HOLE = -1
_MOST_EVENTS = 1_000
"""A base is at most so many changes old: what is stored in full again is found near by."""


class PackedTable(NamedTuple):
    """`changes` is what is stored, `digest` what a step's digest covers: 16 bytes a row."""

    changes: list[Any]
    digest: bytes


@dataclass(slots=True)
class _Known:
    """A row as it was written last, and the base that it refers to."""

    base_seq: int
    base_index: int
    base: Row
    last: Row
    digest: bytes
    holes: int = 0
    cut: int = 0
    tail: Row = ()
    spent: int = 0
    """Entries that its changes have taken."""
    changes: int = 0


class TableEncoder:
    """Writes the tables of one trace, in the order of their events."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None, str], _Known] = {}
        self._digests: dict[Row, bytes] = {}

    def forget(self) -> None:
        """What comes from now on refers to nothing before."""
        self._known.clear()

    def pack(
        self,
        seq: int,
        rank: int,
        group: int | None,
        requests: Sequence[str | None],
        rows: Sequence[Row],
    ) -> PackedTable:
        """Raises ValueError for a row with a number beyond 64 bits."""
        if len(self._known) > 2 * len(rows) + 1_024:
            self._known.clear()
        writing = _Writing(seq)
        digests: list[bytes] = []
        for index, row in enumerate(rows):
            name = requests[index] if index < len(requests) else None
            if name is None:
                writing.full(row)
                digests.append(self._digest(row))
                continue
            key = rank, group, name
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._base(seq, index, row)
                writing.full(row)
            elif known.base_seq == seq:  # named twice in one event
                writing.full(row)
                digests.append(self._digest(row))
                continue
            else:
                self._update(known, row)
                if known.spent > len(known.base) or known.changes > _MOST_EVENTS:
                    self._known[key] = self._base(seq, index, row)
                    writing.full(row)
                else:
                    writing.change(known)
            digests.append(known.digest)
        return PackedTable(writing.packed(), b"".join(digests))

    def _base(self, seq: int, index: int, row: Row) -> _Known:
        return _Known(seq, index, row, row, row_digest(row))

    def _update(self, known: _Known, row: Row) -> None:
        if row != known.last:
            known.last, known.digest = row, row_digest(row)
            known.holes, known.cut, known.tail = _change(known.base, row)
        known.spent += len(known.tail)
        known.changes += 1

    def _digest(self, row: Row) -> bytes:
        """Of a row without a request, which are short and few."""
        known = self._digests.get(row)
        if known is None:
            if len(self._digests) > 256:
                self._digests.clear()
            known = self._digests[row] = row_digest(row)
        return known


class _Writing:
    """The columns of one event's table."""

    def __init__(self, seq: int) -> None:
        self._seq = seq
        self._bases: dict[int, int] = {}
        self._of: list[int] = []
        self._index: list[int] = []
        self._holes: list[int] = []
        self._cut: list[int] = []
        self._lengths: list[int] = []
        self._flat: list[int] = []

    def full(self, row: Row) -> None:
        self._add(0, 0, 0, 0, row)

    def change(self, known: _Known) -> None:
        number = self._bases.setdefault(self._seq - known.base_seq, len(self._bases) + 1)
        self._add(number, known.base_index, known.holes, known.cut, known.tail)

    def _add(self, base: int, index: int, holes: int, cut: int, tail: Row) -> None:
        self._of.append(base)
        self._index.append(index)
        self._holes.append(holes)
        self._cut.append(cut)
        self._lengths.append(len(tail))
        self._flat += tail

    def packed(self) -> list[Any]:
        written = [pack_ints(self._lengths), pack_ints(self._flat)]
        if self._bases:
            written += map(
                pack_ints, (list(self._bases), self._of, self._index, self._holes, self._cut)
            )
        return written


def _change(base: Row, row: Row) -> tuple[int, int, Row]:
    """Holes, cut and tail that make `row` of `base`."""
    if row[: len(base)] == base:
        return 0, 0, row[len(base) :]
    holes = 0
    while holes < len(row) and row[holes] == _HOLE:
        holes += 1
    kept, end = holes, min(len(base), len(row))
    if row[holes:end] == base[holes:end]:
        kept = end
    else:
        while kept < end and row[kept] == base[kept]:
            kept += 1
    if kept <= holes:
        return 0, len(base), row
    return holes, len(base) - kept, row[kept:]


def row_digest(row: Row) -> bytes:
    """Of the entries as little-endian integers of 64 bits. Raises ValueError beyond those."""
    try:
        entries = little_endian(array("q", row))
    except OverflowError:
        raise ValueError("an integer in an array doesn't fit into 64 bits") from None
    return blake2b(entries, digest_size=16).digest()


def table_digest(rows: Sequence[Row]) -> bytes:
    """What a step's digest covers of a table, however it is stored."""
    return b"".join(map(row_digest, rows))


# --- read -----------------------------------------------------------------------------------------


def own_rows(stored: Any) -> list[Row | None]:
    """The rows that an event holds in full, as bases for others; None for the others."""
    columns = _columns(stored)
    tails = _split(columns)
    if len(columns) == 2:
        return list(tails)
    return [None if base else row for base, row in zip(columns[3], tails, strict=True)]


def unpack_table(stored: Any, seq: int, bases: Bases) -> tuple[Row, ...]:
    """The rows of event `seq`. Raises WrongType where they, or a base of theirs, are damaged."""
    columns = _columns(stored)
    tails = _split(columns)
    if len(columns) == 2:
        return tails
    distances, of, *parts = columns[2:]
    found = [bases(seq - distance) for distance in distances]
    return tuple(
        tail if base == 0 else _restored(_row_of(found, base, index), holes, cut, tail)
        for base, index, holes, cut, tail in zip(of, *parts, tails, strict=True)
    )


def _row_of(bases: Sequence[Sequence[Row | None]], base: int, index: int) -> Row:
    if not (0 < base <= len(bases) and 0 <= index < len(bases[base - 1])):
        raise WrongType("a table whose bases are there")
    row = bases[base - 1][index]
    if row is None:
        raise WrongType("a table whose bases are whole")
    return row


def _restored(base: Row, holes: int, cut: int, tail: Row) -> Row:
    kept = len(base) - cut
    if not 0 <= holes <= kept <= len(base):
        raise WrongType("a table whose changes fit")
    return (_HOLE,) * holes + base[holes:kept] + tail


def _columns(stored: Any) -> list[tuple[int, ...]]:
    if type(stored) is not list or len(stored) not in (2, 7):
        raise WrongType("a table")
    columns = [unpack_ints(column) for column in stored]
    rows = len(columns[0])
    if any(len(column) != rows for column in columns[3:]):
        raise WrongType("a table whose columns are of one length")
    if any(distance < 1 for distance in (columns[2] if len(columns) > 2 else ())):
        raise WrongType("a table whose bases come before it")
    return columns


def _split(columns: list[tuple[int, ...]]) -> tuple[Row, ...]:
    lengths, flat = columns[0], columns[1]
    if (lengths and min(lengths) < 0) or sum(lengths) != len(flat):
        raise WrongType("a table whose lengths add up")
    return tuple(flat[a:b] for a, b in pairwise(accumulate(lengths, initial=0)))
