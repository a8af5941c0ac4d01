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
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple

from .arrays import IntPacker, WrongType, little_endian, pack_ints, unpack_ints

Row = tuple[int, ...]
Bases = Callable[[int], Sequence[Row | None]]
"""seq of an InputsBuilt -> its rows, None for those that it doesn't hold in full."""

_HOLE = -1
_MOST_EVENTS = 20_000
"""A base is fewer events back than that: what is stored in full again is found near by."""


class PackedTable(NamedTuple):
    """`changes` is what is stored, `digest` what a step's digest covers: 16 bytes a row."""

    changes: list[Any]
    digest: bytes


@dataclass(slots=True)
class _Written:
    """A row as it was written last: in full in the event `base_seq`, or as a change to its base,
    which is there."""

    base_seq: int
    base_index: int
    base: Row
    last_seq: int
    last: Row
    digest: bytes
    holes: int = 0
    cut: int = 0
    tail: Row = ()
    spent: int = 0
    """Entries that its changes have taken."""

    def change(self, row: Row) -> None:
        self.last, self.digest = row, row_digest(row)
        self.holes, self.cut, self.tail = _change(self.base, row)


@dataclass(slots=True)
class _Event:
    """The last event of a rank and group: most tables are the same in the next one."""

    requests: Sequence[str | None]
    rows: Sequence[Row]
    written: list[_Written]
    bases: list[int]
    columns: list[Any]
    digest: bytes
    left: int
    """How often it may be repeated before a row is to be written in full again."""
    repeats: int = 0

    def repeat(self, seq: int) -> PackedTable:
        self.left -= 1
        self.repeats += 1
        columns = self.columns.copy()
        columns[2] = pack_ints([seq - base for base in self.bases])
        return PackedTable(columns, self.digest)

    def settle(self) -> None:
        """What the repeats have cost."""
        for row in self.written:
            row.spent += self.repeats * len(row.tail)


class TableEncoder:
    """Writes the tables of one trace, in the order of their events."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], dict[str, _Written]] = {}
        self._last: dict[tuple[int, int | None], _Event] = {}
        self._digests: dict[Row, bytes] = {}
        self._ints = IntPacker()

    def forget(self) -> None:
        """What comes from now on refers to nothing before."""
        self._known.clear()
        self._last.clear()

    def pack(
        self,
        seq: int,
        rank: int,
        group: int | None,
        requests: Sequence[str | None],
        rows: Sequence[Row],
    ) -> PackedTable:
        """Raises ValueError for a row with a number beyond 64 bits."""
        last = self._last.get((rank, group))
        if last is not None:
            is_near = last.left > 0 and seq - min(last.bases) < _MOST_EVENTS
            if is_near and last.requests == requests and last.rows == rows:
                return last.repeat(seq)
            last.settle()
            del self._last[rank, group]
        known = self._known.setdefault((rank, group), {})
        if len(known) > 2 * len(rows) + 256:
            known.clear()
        written, are_changes = self._written(seq, known, requests, rows)
        bases = [base for base in dict.fromkeys([w.base_seq for w in written]) if base != seq]
        columns = self._columns(seq, written, bases)
        digest = b"".join([w.digest for w in written])
        if are_changes and bases:
            left = min([(len(w.base) - w.spent) // len(w.tail) for w in written if w.tail] or [999])
            event = _Event(requests, rows, written, bases, columns, digest, left)
            self._last[rank, group] = event
        return PackedTable(columns, digest)

    def _written(
        self,
        seq: int,
        known: dict[str, _Written],
        requests: Sequence[str | None],
        rows: Sequence[Row],
    ) -> tuple[list[_Written], bool]:
        """Each row, and whether all but those of pads, which have no tails, are changes."""
        written: list[_Written] = []
        are_changes = True
        oldest = seq - _MOST_EVENTS
        for index, (row, name) in enumerate(zip(rows, chain(requests, repeat(None)), strict=False)):
            before = None if name is None else known.get(name)
            is_first = before is None or before.last_seq < seq
            if before is not None and is_first and oldest < before.base_seq:
                before.last_seq = seq
                if row != before.last:
                    before.change(row)
                if before.tail:
                    before.spent += len(before.tail)
                if before.spent <= len(before.base):
                    written.append(before)
                    continue
            digest = self._digest(row)
            if name is not None and is_first:
                known[name] = _Written(seq, index, row, seq, row, digest)
            are_changes = are_changes and not row
            written.append(_Written(seq, 0, row, seq, row, digest, tail=row))
        return written, are_changes

    def _columns(self, seq: int, written: Sequence[_Written], bases: Sequence[int]) -> list[Any]:
        """One event's table as it is stored; its own rows are in full."""
        pack = self._ints.pack
        self._ints.tidy()
        columns = [
            pack([len(w.tail) for w in written]),
            pack_ints(list(chain.from_iterable([w.tail for w in written if w.tail]))),
        ]
        if bases:
            number = {base: index for index, base in enumerate(bases, 1)}
            number[seq] = 0
            columns += [
                pack_ints([seq - base for base in bases]),
                pack([number[w.base_seq] for w in written]),
                pack([w.base_index for w in written]),
                pack([w.holes for w in written]),
                pack([w.cut for w in written]),
            ]
        return columns

    def _digest(self, row: Row) -> bytes:
        """Rows in full are those of pads, which are alike, or new."""
        known = self._digests.get(row)
        if known is None:
            if len(self._digests) > 256:
                self._digests.clear()
            known = self._digests[row] = row_digest(row)
        return known


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
