"""Events to bytes and back.

A row of the trace holds an event as kind, request, block and a *payload*: the remaining fields as
one msgpack map, in declaration order, absent optionals left out, unknown fields after the known
ones in sorted order. Arrays are raw numbers (see `arrays`), so that nothing in a trace is ever
pickled or parsed number by number. The encoding is canonical: two events are equal when their
bytes are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack

from .arrays import (
    WrongType,
    pack_floats,
    pack_ints,
    pack_table,
    unpack_floats,
    unpack_ints,
    unpack_scalar,
    unpack_table,
    value_packer,
)
from .errors import BadEvent
from .events import KINDS, Event
from .fields import FieldSpec, Shape, fields_of
from .plain import canonical

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
    stored: tuple[tuple[str, bool, bool, Callable[[Any], Any] | None], ...]
    """Of each field: name, whether it is required, whether it is a float, and how it is packed."""
    values: Callable[[Event], tuple[Any, ...]]
    """The values of the fields, and of `unknown` behind them."""
    names: frozenset[str]
    unpack_request: Callable[[Any], Any] | None
    """None where the event has no such field, or has it in another shape."""
    unpack_block: Callable[[Any], Any] | None
    has_floats: bool


# --- encode ---------------------------------------------------------------------------------------


class Encoder:
    """Encodes one event after the other, for one thread."""

    def __init__(self) -> None:
        self._pack = value_packer()

    def encode(self, event: Event) -> Encoded:
        """Canonical bytes of an event. Raises BadEvent for what a trace can't hold."""
        plan = _plan(type(event))
        try:
            return self._encode(event, plan)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadEvent(type(event).__name__, str(error)) from error

    def _encode(self, event: Event, plan: _Plan) -> Encoded:
        packed: dict[str, Any] = {}
        floats: dict[str, Any] = {}
        values = plan.values(event)
        for (name, required, is_float, pack), value in zip(plan.stored, values, strict=False):
            if value is None and not required:
                continue
            packed[name] = value if pack is None else pack(value)
            if is_float:
                floats[name] = packed[name]
        if event.unknown:
            _add_unknown(packed, event.unknown, plan)
        payload = exact = self._pack(packed)
        if floats:
            left = {name: value for name, value in packed.items() if name not in floats}
            exact = self._pack(left)
        return Encoded(
            event.request if plan.unpack_request else None,  # type: ignore[attr-defined]
            _pack_int(event.block) if plan.unpack_block else None,  # type: ignore[attr-defined]
            payload,
            exact,
            self._pack(floats) if floats else b"",
        )


def encode(event: Event) -> Encoded:
    """One event, as `Encoder.encode` does."""
    return Encoder().encode(event)


def _add_unknown(packed: dict[str, Any], unknown: Mapping[str, Any], plan: _Plan) -> None:
    for name, value in canonical(dict(unknown)).items():
        if name in plan.names or name in RESERVED:
            raise ValueError(f"the unknown field {name!r} has the name of a known one")
        packed[name] = value


def _pack_int(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer doesn't fit into 64 bits")
    return value


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
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
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
    except WrongType as error:
        raise ValueError(f"the field {name} is not {error}") from None


def _unpack_unknown(stored: dict[Any, Any], plan: _Plan) -> dict[str, Any]:
    if not plan.names.isdisjoint(stored) or not RESERVED.isdisjoint(stored):
        raise ValueError("a field of the row is repeated in the payload")
    return _unpack_plain(stored)


def _unpack_exactly(expected: type, what: str) -> Callable[[Any], Any]:
    def unpack(value: Any) -> Any:
        if type(value) is not expected:
            raise WrongType(what)
        return value

    return unpack


def _unpack_word(words: tuple[str, ...]) -> Callable[[Any], str]:
    def unpack(value: Any) -> str:
        if value not in words:
            raise WrongType(f"one of {', '.join(words)}")
        return value

    return unpack


def _unpack_tuple(item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def unpack(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise WrongType("a list")
        return tuple(map(item, value))

    return unpack


def _unpack_row(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise WrongType("a list of requests and nulls")
    return value


def _unpack_plain(value: Any) -> Any:
    return canonical(_without_ext(value))


def _without_ext(value: Any) -> Any:
    if isinstance(value, msgpack.ExtType):
        return unpack_scalar(value)
    if isinstance(value, list):
        return [_without_ext(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_ext(item) for key, item in value.items()}
    return value


def _unpack_container(expected: type, what: str) -> Callable[[Any], Any]:
    def unpack(value: Any) -> Any:
        if type(value) is not expected:
            raise WrongType(what)
        return _unpack_plain(value)

    return unpack


# --- the plan of a class --------------------------------------------------------------------------

_PACK: Mapping[Shape, Callable[[Any], Any]] = {
    "int": _pack_int, "float": float, "bytes": bytes, "ints": pack_ints, "floats": pack_floats,
    "table": pack_table, "list": canonical, "map": canonical, "any": canonical,
}  # fmt: skip

_TEXT = _unpack_exactly(str, "text")

_UNPACK: Mapping[Shape, Callable[[Any], Any]] = {
    "int": _unpack_exactly(int, "an integer"),
    "float": _unpack_exactly(float, "a float"),
    "bool": _unpack_exactly(bool, "true or false"),
    "str": _TEXT,
    "bytes": _unpack_exactly(bytes, "bytes"),
    "scalar": unpack_scalar,
    "list": _unpack_container(list, "a list"),
    "map": _unpack_container(dict, "a map"),
    "any": _unpack_plain,
    "ints": unpack_ints,
    "floats": unpack_floats,
    "names": _unpack_tuple(_TEXT),
    "rows": _unpack_tuple(_unpack_row),
    "scalars": _unpack_tuple(unpack_scalar),
    "table": unpack_table,
}


@cache
def _plan(cls: type[Event]) -> _Plan:
    specs = fields_of(cls)
    columns = {spec.name: _column(spec) for spec in specs if _is_column(spec)}
    stored = [spec for spec in specs if not _is_column(spec)]
    fields = tuple(_field(spec) for spec in stored)
    return _Plan(
        cls=cls,
        fields=fields,
        stored=tuple((f.name, f.required, f.is_float, f.pack) for f in fields),
        values=attrgetter(*(f.name for f in fields), "unknown"),
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
