"""Rows of a trace as events, whatever version of the format they were stored in.

An event may refer to the table of names and to earlier block tables; they are read once and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgpack
from sqlalchemy import Row, Select, select

from . import codec, version1
from .arrays import WrongType
from .codec import Context, StoredRow, plan_of
from .digest import DigestChain, StepDigest, event_digest, joined_digest
from .encoder import Encoded, Encoder
from .errors import BadEvent
from .events import KINDS, Envelope, Event, InputsBuilt
from .schema import events, names
from .tables import Row as TableRow
from .tables import own_rows

Fetch = Callable[[Select[Any]], Iterable[Row[Any]]]
"""Runs a query on the trace."""

_BASES_KEPT = 256
_TABLES = [spec.name for spec in plan_of(InputsBuilt).fields].index("block_tables")


class StoredChain(Protocol):
    """The chain of digests over rows as they are stored."""

    def close_step(self, step: int, last_seq: int, rows: Iterable[StoredRow]) -> StepDigest: ...

    def resume(self, closed: StepDigest, rows: Iterable[StoredRow]) -> bytes:
        """Begin behind a step, as a ring does; the digest of the older rows that are there."""
        ...


class Decoding(Protocol):
    """One version of the format."""

    def decode(self, row: StoredRow) -> Event:
        """Raises BadEvent for what is no event."""
        ...

    def chain(self) -> StoredChain: ...


def decoding_of(version: int, fetch: Fetch) -> Decoding:
    return Version1() if version == 1 else Version2(fetch)


def stored_row(row: Row[Any]) -> StoredRow:
    """Raises BadEvent where a column has the wrong type."""
    stored = StoredRow(*row)
    if not (
        type(stored.step) is type(stored.t_ns) is type(stored.rank) is int
        and type(stored.payload) is bytes
    ):
        raise BadEvent(str(stored.kind), "the columns of its row have the wrong types")
    return stored


def envelope_of(row: StoredRow, decoding: Decoding) -> Envelope:
    return Envelope(row.seq, row.step, row.t_ns, row.rank, decoding.decode(row))


class Version1:
    """Payloads that refer to nothing."""

    def decode(self, row: StoredRow) -> Event:
        return version1.decode(row)

    def chain(self) -> StoredChain:
        return version1.Version1Chain()


class Version2:
    """Names as numbers, block tables as changes."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._names: dict[int, str] = {}
        self._last_id = 0
        self._bases: OrderedDict[int, list[TableRow | None]] = OrderedDict()
        self._context = Context(self._name_of, self._rows_of, {})

    def decode(self, row: StoredRow) -> Event:
        return codec.decode(row, self._context)

    def chain(self) -> StoredChain:
        return _Version2Chain(self)

    def _name_of(self, number: int) -> str | None:
        if number > self._last_id:
            query = select(names).where(names.c.id > self._last_id).order_by(names.c.id)
            for row in self._fetch(query):
                if type(row.name) is str:
                    self._names[row.id] = row.name
                self._last_id = row.id
        return self._names.get(number)

    def _rows_of(self, seq: int) -> Sequence[TableRow | None]:
        """Raises WrongType where event `seq` is no base."""
        if seq in self._bases:
            self._bases.move_to_end(seq)
            return self._bases[seq]
        query = select(events.c.payload).where(
            events.c.seq == seq, events.c.kind == InputsBuilt.__name__
        )
        row = next(iter(self._fetch(query)), None)
        if row is None:
            raise WrongType(f"a table whose bases are there: event {seq} is lost")
        self._bases[seq] = found = _own_rows(row[0])
        if len(self._bases) > _BASES_KEPT:
            self._bases.popitem(last=False)
        return found


def _own_rows(payload: bytes) -> list[TableRow | None]:
    try:
        return own_rows(codec.unpacked_payload(payload)[0][_TABLES])
    except (TypeError, ValueError, IndexError, msgpack.UnpackException):
        raise WrongType("a table whose bases are sound") from None


class _Version2Chain:
    """Digests are taken over canonical payloads; most are stored as they are."""

    def __init__(self, decoding: Version2) -> None:
        self._decoding = decoding
        self._encoder = Encoder()
        self._chain = DigestChain()

    def close_step(self, step: int, last_seq: int, rows: Iterable[StoredRow]) -> StepDigest:
        encoded = [(row.step, row.kind, self._encoded(row)) for row in rows]
        self._encoder.tidy()
        return self._chain.close_step(step, last_seq, encoded)

    def resume(self, closed: StepDigest, rows: Iterable[StoredRow]) -> bytes:
        self._chain.resume(closed)
        return joined_digest(
            event_digest(row.seq, row.step, row.kind, self._encoded(row)) for row in rows
        )

    def _encoded(self, row: StoredRow) -> Encoded:
        payload = row.payload if type(row.payload) is bytes else b""
        as_stored = Encoded(row.request, row.block, payload, payload, b"")
        if row.kind not in KINDS or not plan_of(KINDS[row.kind]).is_special:
            return as_stored
        try:
            return self._encoder.encode(self._decoding.decode(row), row.seq, row.rank)
        except BadEvent:  # no event that gives the stored digest, which is what is looked for
            return as_stored
