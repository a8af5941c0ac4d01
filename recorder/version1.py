"""Reads what format version 1 stored: payloads were maps, names text, block tables whole.

The rest of the program sees the same events as from a trace of today. Nothing writes this format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import msgpack

from .arrays import WrongType, unpack_ints, value_packer
from .codec import FLOAT_SHAPES, RESERVED, UNPACK, StoredRow, plain_of, plan_of, unpack_tuple
from .digest import DIGEST_SIZE, StepDigest
from .errors import BadEvent
from .events import KINDS, Event
from .fields import FieldSpec, Shape

_TABLE = 6
_TABLE_HEAD = struct.Struct("<BBI")
_INT_SIZES = {1: 1, 2: 2, 3: 4, 4: 8}


def decode(row: StoredRow) -> Event:
    """Raises BadEvent, naming the kind, for bytes that are no event."""
    cls = KINDS.get(row.kind)
    if cls is None:
        raise BadEvent(row.kind, "no such kind of event in this version of the contract")
    try:
        return _decode(cls, row)
    except msgpack.UnpackException as error:
        why = f" ({error})" if str(error) else ""
        raise BadEvent(row.kind, f"the stored payload is not msgpack{why}") from error
    except WrongType as error:
        raise BadEvent(row.kind, f"the stored payload is damaged (it is not {error})") from error
    except (
        TypeError,
        ValueError,
        LookupError,
        OverflowError,
        RecursionError,
        struct.error,
    ) as error:
        raise BadEvent(row.kind, f"the stored payload is damaged ({error})") from error


def _decode(cls: type[Event], row: StoredRow) -> Event:
    plan = plan_of(cls)
    stored = msgpack.unpackb(row.payload, strict_map_key=True)
    if not isinstance(stored, dict):
        raise ValueError("not a map of fields")
    values: dict[str, Any] = {}
    for spec, value in ((plan.request, row.request), (plan.block, row.block)):
        if spec is not None and (value is not None or spec.required):
            values[spec.name] = _field(spec, value)
    for spec in plan.fields:
        if spec.name in stored:
            values[spec.name] = _field(spec, stored.pop(spec.name))
        elif spec.required:
            raise ValueError(f"the field {spec.name} is missing")
    if stored:
        if not plan.names.isdisjoint(stored) or not RESERVED.isdisjoint(stored):
            raise ValueError("a field of the row is repeated in the payload")
        values["unknown"] = plain_of(stored)
    return cls(**values)


def _field(spec: FieldSpec, value: Any) -> Any:
    try:
        if spec.words is None:
            return _UNPACK[spec.shape](value)
        word = _word(spec.words)
        return unpack_tuple(word)(value) if spec.shape == "words" else word(value)
    except WrongType as error:
        raise ValueError(f"the field {spec.name} is not {error}") from None


def _word(words: tuple[str, ...]) -> Callable[[Any], str]:
    def unpack(value: Any) -> str:
        if value not in words:
            raise WrongType(f"one of {', '.join(words)}")
        return value

    return unpack


def _row(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise WrongType("a list of requests and nulls")
    return value


def _table(value: Any) -> tuple[tuple[int, ...], ...]:
    """lengths' ext type (u8), the numbers' (u8), rows (u32), then both."""
    if not isinstance(value, msgpack.ExtType) or value.code != _TABLE:
        raise WrongType("a table")
    lengths_code, flat_code, rows = _TABLE_HEAD.unpack_from(value.data)
    split = _TABLE_HEAD.size + rows * _INT_SIZES[lengths_code]
    lengths = unpack_ints(msgpack.ExtType(lengths_code, value.data[_TABLE_HEAD.size : split]))
    flat = unpack_ints(msgpack.ExtType(flat_code, value.data[split:]))
    if len(lengths) != rows or (rows and min(lengths) < 0) or sum(lengths) != len(flat):
        raise WrongType("a table whose lengths add up")
    return tuple(flat[a:b] for a, b in pairwise(accumulate(lengths, initial=0)))


_UNPACK: Mapping[Shape, Callable[[Any], Any]] = {
    **UNPACK,
    "names": unpack_tuple(UNPACK["str"]),
    "rows": unpack_tuple(_row),
    "table": _table,
}


# --- digests --------------------------------------------------------------------------------------


class Version1Chain:
    """The chain of digests of version 1, which covered the payloads as they were stored."""

    def __init__(self) -> None:
        self._exact = b""
        self._floats = b""
        self._pack = value_packer()

    def close_step(self, step: int, last_seq: int, rows: Iterable[StoredRow]) -> StepDigest:
        parts, floats = [self._exact], [self._floats]
        for row in rows:
            exact, own_floats = self._without_floats(row)
            parts.append(self._pack((row.step, row.kind, row.request, row.block, exact)))
            if own_floats:
                floats.append(self._pack((row.kind, own_floats)))
        self._exact, self._floats = _digest(parts), _digest(floats)
        return StepDigest(step, last_seq, self._exact, self._floats)

    def resume(self, closed: StepDigest, rows: Iterable[StoredRow]) -> bytes:
        """Version 1 has no rings: no digest is right."""
        return b""

    def _without_floats(self, row: StoredRow) -> tuple[bytes, bytes]:
        """The payload without float-shaped fields, and those alone."""
        names = _float_fields(row.kind)
        if not names:
            return row.payload, b""
        try:
            stored = msgpack.unpackb(row.payload)
            floats = {name: stored[name] for name in stored if name in names}
            if not floats:
                return row.payload, b""
            exact = {name: value for name, value in stored.items() if name not in names}
            return self._pack(exact), self._pack(floats)
        except (TypeError, ValueError, msgpack.UnpackException):
            return row.payload, b""  # no event; its digest doesn't fit either way


def _digest(parts: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(parts), digest_size=DIGEST_SIZE).digest()


@cache
def _float_fields(kind: str) -> frozenset[str]:
    fields = plan_of(KINDS[kind]).fields if kind in KINDS else ()
    return frozenset(spec.name for spec in fields if spec.shape in FLOAT_SHAPES)
