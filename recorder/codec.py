"""Events to bytes and back.

A row of the trace holds an event as kind, request, block and a *payload*: the remaining fields as
one msgpack map, in declaration order, absent optionals left out, unknown fields after the known
ones in sorted order. Arrays are ext types holding raw little-endian numbers, so that nothing in a
trace is ever pickled or parsed number by number. The encoding is canonical: two events are equal
when their bytes are.

| ext | content |
|---|---|
| 1, 2, 3, 4 | signed integers of 8, 16, 32, 64 bits, the smallest that fits all |
| 5 | float64 |
| 6 | ragged table: ext of the lengths (u8), ext of the flat numbers (u8), rows (u32), then both |
| 7 | one integer outside 64 bits, two's complement |
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, cast

import msgpack
import numpy as np

from .errors import BadEvent
from .events import KINDS, Event, FieldSpec, Shape, fields_of
from .plain import canonical, small_enough

_WIDTHS = ((1, "b", 1 << 7), (2, "h", 1 << 15), (3, "i", 1 << 31), (4, "q", 1 << 63))
"""ext code, array typecode, first number that no longer fits."""
_TYPECODES = {code: typecode for code, typecode, _ in _WIDTHS}
_FLOATS, _TABLE, _BIG_INT = 5, 6, 7
_TABLE_HEAD = struct.Struct("<BBI")

RESERVED = frozenset({"kind", "step", "seq", "t_ns", "rank"})
"""Names of the envelope; no event has a field of those names, unknown ones included."""

FLOAT_SHAPES = frozenset({"float", "floats"})


class Encoded(NamedTuple):
    """An event as the trace stores it, and what its digests are taken over."""

    request: str | None
    block: int | None
    payload: bytes
    exact: bytes
    """The payload without float-shaped fields."""
    floats: bytes
    """The float-shaped fields alone; empty when there are none."""


class _Field(NamedTuple):
    name: str
    required: bool
    is_float: bool
    pack: Callable[[Any], Any] | None
    unpack: Callable[[Any], Any]


class _Plan(NamedTuple):
    cls: type[Event]
    fields: tuple[_Field, ...]
    names: frozenset[str]
    unpack_request: Callable[[Any], Any] | None
    """None where the event has no such field, or has it in another shape."""
    unpack_block: Callable[[Any], Any] | None
    has_floats: bool


# --- encode ---------------------------------------------------------------------------------------


def encode(event: Event) -> Encoded:
    """Canonical bytes of an event. Raises BadEvent for what a trace can't hold."""
    plan = _plan(type(event))
    try:
        return _encode(event, plan)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadEvent(type(event).__name__, str(error)) from error


def _encode(event: Event, plan: _Plan) -> Encoded:
    packed: dict[str, Any] = {}
    floats: dict[str, Any] = {}
    for name, required, is_float, pack, _ in plan.fields:
        value = getattr(event, name)
        if value is None and not required:
            continue
        if pack is not None:
            value = pack(value)
        packed[name] = value
        if is_float:
            floats[name] = value
    if event.unknown:
        _add_unknown(packed, event.unknown, plan)
    payload = exact = pack_value(packed)
    if floats:
        exact = pack_value({name: value for name, value in packed.items() if name not in floats})
    return Encoded(
        event.request if plan.unpack_request else None,  # type: ignore[attr-defined]
        _pack_int(event.block) if plan.unpack_block else None,  # type: ignore[attr-defined]
        payload,
        exact,
        pack_value(floats) if floats else b"",
    )


def _add_unknown(packed: dict[str, Any], unknown: Mapping[str, Any], plan: _Plan) -> None:
    for name, value in canonical(dict(unknown)).items():
        if name in plan.names or name in RESERVED:
            raise ValueError(f"the unknown field {name!r} has the name of a known one")
        packed[name] = value


def pack_ints(values: Iterable[int]) -> msgpack.ExtType:
    """Raw integers of the smallest width that fits all. Raises ValueError beyond 64 bits."""
    numbers = values if isinstance(values, tuple) else tuple(values)
    if not numbers:
        return msgpack.ExtType(1, b"")
    low, high = min(numbers), max(numbers)
    for code, typecode, limit in _WIDTHS:
        if -limit <= low and high < limit:
            return msgpack.ExtType(code, _little_endian(array(typecode, numbers)).tobytes())
    raise ValueError("an integer in an array doesn't fit into 64 bits")


def _pack_floats(values: Iterable[float]) -> msgpack.ExtType:
    return msgpack.ExtType(_FLOATS, _little_endian(array("d", values)).tobytes())


def _pack_table(rows: tuple[tuple[int, ...], ...]) -> msgpack.ExtType:
    lengths = pack_ints(tuple(map(len, rows)))
    flat = pack_ints(tuple(chain.from_iterable(rows)))
    head = _TABLE_HEAD.pack(lengths.code, flat.code, len(rows))
    return msgpack.ExtType(_TABLE, head + lengths.data + flat.data)


def _pack_int(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer doesn't fit into 64 bits")
    return value


def _default(value: Any) -> Any:
    """What msgpack has no type for: integers outside 64 bits and numpy's scalars."""
    if isinstance(value, int):
        size = small_enough(value).bit_length() // 8 + 1
        return msgpack.ExtType(_BIG_INT, value.to_bytes(size, "little", signed=True))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__} can't be stored")


def pack_value(value: Any) -> bytes:
    """One msgpack value, in the trace's dialect (integers of any width)."""
    return cast(bytes, msgpack.packb(value, default=_default))


def _little_endian(numbers: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# --- decode ---------------------------------------------------------------------------------------


def decode(
    kind: str, payload: bytes, request: str | None = None, block: int | None = None
) -> Event:
    """The inverse of `encode`. Raises BadEvent, naming the kind, for bytes that are no event."""
    cls = KINDS.get(kind)
    if cls is None:
        raise BadEvent(kind, "no such kind of event in this version of the contract")
    try:
        return _decode(_plan(cls), payload, request, block)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError, struct.error) as error:
        raise BadEvent(kind, f"the stored payload is damaged ({error})") from error
    except msgpack.UnpackException as error:
        raise BadEvent(kind, f"the stored payload is not msgpack ({error})") from error


def _decode(plan: _Plan, payload: bytes, request: str | None, block: int | None) -> Event:
    stored = msgpack.unpackb(payload, strict_map_key=True)
    if not isinstance(stored, dict):
        raise ValueError("not a map of fields")
    values: dict[str, Any] = {}
    for name, unpack, value in (
        ("request", plan.unpack_request, request),
        ("block", plan.unpack_block, block),
    ):
        if unpack is not None:
            values[name] = _unpacked(name, unpack, value)
    for name, required, _, _, unpack in plan.fields:
        if name in stored:
            values[name] = _unpacked(name, unpack, stored.pop(name))
        elif required:
            raise ValueError(f"the field {name} is missing")
    if stored:
        values["unknown"] = _unpack_unknown(stored, plan)
    return plan.cls(**values)


def _unpacked(name: str, unpack: Callable[[Any], Any], value: Any) -> Any:
    try:
        return unpack(value)
    except _WrongType as error:
        raise ValueError(f"the field {name} is not {error}") from None


def _unpack_unknown(stored: dict[Any, Any], plan: _Plan) -> dict[str, Any]:
    if not plan.names.isdisjoint(stored) or not RESERVED.isdisjoint(stored):
        raise ValueError("a field of the row is repeated in the payload")
    return _unpack_plain(stored)


class _WrongType(Exception):
    """Says what was expected; the caller knows the field."""


def _unpack_ints(value: Any) -> tuple[int, ...]:
    if not isinstance(value, msgpack.ExtType) or value.code not in _TYPECODES:
        raise _WrongType("an array of integers")
    return tuple(_numbers(_TYPECODES[value.code], value.data))


def _unpack_floats(value: Any) -> tuple[float, ...]:
    if not isinstance(value, msgpack.ExtType) or value.code != _FLOATS:
        raise _WrongType("an array of floats")
    return tuple(_numbers("d", value.data))


def _numbers(typecode: str, data: bytes) -> array[Any]:
    numbers = array(typecode)
    numbers.frombytes(data)
    return _little_endian(numbers)


def _unpack_table(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, msgpack.ExtType) or value.code != _TABLE:
        raise _WrongType("a table")
    lengths_code, flat_code, rows = _TABLE_HEAD.unpack_from(value.data)
    split = _TABLE_HEAD.size + rows * array(_TYPECODES[lengths_code]).itemsize
    lengths = _numbers(_TYPECODES[lengths_code], value.data[_TABLE_HEAD.size : split])
    flat = tuple(_numbers(_TYPECODES[flat_code], value.data[split:]))
    if len(lengths) != rows or (rows and min(lengths) < 0) or sum(lengths) != len(flat):
        raise _WrongType("a table whose lengths add up")
    return tuple(flat[a:b] for a, b in pairwise(accumulate(lengths, initial=0)))


def _unpack_exactly(expected: type, what: str) -> Callable[[Any], Any]:
    def unpack(value: Any) -> Any:
        if type(value) is not expected:
            raise _WrongType(what)
        return value

    return unpack


def _unpack_word(words: tuple[str, ...]) -> Callable[[Any], str]:
    def unpack(value: Any) -> str:
        if value not in words:
            raise _WrongType(f"one of {', '.join(words)}")
        return value

    return unpack


def _unpack_scalar(value: Any) -> str | int:
    if type(value) is str or type(value) is int:
        return value
    if isinstance(value, msgpack.ExtType) and value.code == _BIG_INT:
        return int.from_bytes(value.data, "little", signed=True)
    raise _WrongType("text or an integer")


def _unpack_tuple(item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def unpack(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _WrongType("a list")
        return tuple(map(item, value))

    return unpack


def _unpack_row(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise _WrongType("a list of requests and nulls")
    return value


def _unpack_plain(value: Any) -> Any:
    return canonical(_without_ext(value, 0))


def _without_ext(value: Any, depth: int) -> Any:
    if isinstance(value, msgpack.ExtType):
        return _unpack_scalar(value)
    if isinstance(value, list):
        return [_without_ext(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _without_ext(item, depth + 1) for key, item in value.items()}
    return value


def _unpack_container(expected: type, what: str) -> Callable[[Any], Any]:
    def unpack(value: Any) -> Any:
        if type(value) is not expected:
            raise _WrongType(what)
        return _unpack_plain(value)

    return unpack


# --- the plan of a class --------------------------------------------------------------------------

_PACK: Mapping[Shape, Callable[[Any], Any]] = {
    "int": _pack_int, "float": float, "bytes": bytes, "ints": pack_ints, "floats": _pack_floats,
    "table": _pack_table, "list": canonical, "map": canonical, "any": canonical,
}  # fmt: skip

_TEXT = _unpack_exactly(str, "text")

_UNPACK: Mapping[Shape, Callable[[Any], Any]] = {
    "int": _unpack_exactly(int, "an integer"),
    "float": _unpack_exactly(float, "a float"),
    "bool": _unpack_exactly(bool, "true or false"),
    "str": _TEXT,
    "bytes": _unpack_exactly(bytes, "bytes"),
    "scalar": _unpack_scalar,
    "list": _unpack_container(list, "a list"),
    "map": _unpack_container(dict, "a map"),
    "any": _unpack_plain,
    "ints": _unpack_ints,
    "floats": _unpack_floats,
    "names": _unpack_tuple(_TEXT),
    "rows": _unpack_tuple(_unpack_row),
    "scalars": _unpack_tuple(_unpack_scalar),
    "table": _unpack_table,
}


@cache
def _plan(cls: type[Event]) -> _Plan:
    specs = fields_of(cls)
    columns = {spec.name: _column(spec) for spec in specs if _is_column(spec)}
    stored = [spec for spec in specs if not _is_column(spec)]
    return _Plan(
        cls=cls,
        fields=tuple(_field(spec) for spec in stored),
        names=frozenset(spec.name for spec in specs),
        unpack_request=columns.get("request"),
        unpack_block=columns.get("block"),
        has_floats=any(spec.shape in FLOAT_SHAPES for spec in stored),
    )


def _is_column(spec: FieldSpec) -> bool:
    return (spec.name, spec.shape) in (("request", "str"), ("block", "int"))


def _column(spec: FieldSpec) -> Callable[[Any], Any]:
    unpack = _UNPACK[spec.shape]
    return unpack if spec.required else lambda value: None if value is None else unpack(value)


def _field(spec: FieldSpec) -> _Field:
    return _Field(
        spec.name,
        spec.required,
        spec.shape in FLOAT_SHAPES,
        _PACK.get(spec.shape),
        _unpack_for(spec),
    )


def _unpack_for(spec: FieldSpec) -> Callable[[Any], Any]:
    if spec.words is None:
        return _UNPACK[spec.shape]
    word = _unpack_word(spec.words)
    return _unpack_tuple(word) if spec.shape == "words" else word


def has_floats(kind: str) -> bool:
    """Whether events of this kind have float-shaped fields, which the step digest leaves out."""
    return _plan(KINDS[kind]).has_floats
