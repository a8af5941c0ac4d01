"""How events are laid out in bytes, and bytes back to events (`encoder` has the other way).

A row of the trace holds an event as kind, request, block and a *payload*: the remaining fields as
one msgpack array, in the order in which the class declares them (`decision` first), nil where one
is absent, without the nils at the end. Behind it, where there are fields that we don't know, a
msgpack map of them. Nothing in a trace is ever pickled or parsed number by number.

Three shapes are not stored as they are: names are numbers (see `names`), block tables are changes
(see `tables`). So an event has two forms. What is *stored* depends on the events before it; what is
*canonical* depends on the event alone, and is what digests and comparisons are taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack

from .arrays import WrongType, ext_type, unpack_floats, unpack_ints, unpack_scalar
from .errors import BadEvent
from .events import KINDS, Event, Rows
from .fields import FieldSpec, Shape, fields_of
from .names import unpack_names
from .plain import canonical
from .tables import Bases, unpack_table

RESERVED = frozenset({"kind", "step", "seq", "t_ns", "rank"})
"""Names of the envelope; no event has a field of those names, unknown ones included."""

_LISTS_KEPT = 1_000

FLOAT_SHAPES = frozenset({"float", "floats"})


# --- the plan of a class --------------------------------------------------------------------------


class Plan(NamedTuple):
    """How events of a class are laid out."""

    cls: type[Event]
    fields: tuple[FieldSpec, ...]
    """Those of the payload, in order."""
    values: Callable[[Event], tuple[Any, ...]]
    names: frozenset[str]
    """Of all fields."""
    request: FieldSpec | None
    """None where the event has no such column."""
    block: FieldSpec | None
    is_special: bool
    """Whether what is stored of it is not what is canonical."""


def is_numbered(spec: FieldSpec) -> bool:
    """Whether names are stored as numbers: those of requests, which come again in every step."""
    return spec.name == "requests" and spec.shape in ("names", "rows")


@cache
def plan_of(cls: type[Event]) -> Plan:
    specs = fields_of(cls)
    columns = {spec.name: spec for spec in specs if _is_column(spec)}
    stored = tuple(spec for spec in specs if not _is_column(spec))
    return Plan(
        cls=cls,
        fields=stored,
        values=_values_of(tuple(spec.name for spec in stored)),
        names=frozenset(spec.name for spec in specs),
        request=columns.get("request"),
        block=columns.get("block"),
        is_special=any(
            spec.shape in FLOAT_SHAPES | {"table"} or is_numbered(spec) for spec in stored
        ),
    )


def _is_column(spec: FieldSpec) -> bool:
    return (spec.name, spec.shape) in (("request", "str"), ("block", "int"))


def _values_of(names: tuple[str, ...]) -> Callable[[Event], tuple[Any, ...]]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda event: (get(event),)


# --- decode ---------------------------------------------------------------------------------------


class Context(NamedTuple):
    """What else of the trace a stored event refers to."""

    name_of: Callable[[int], str | None]
    bases: Bases
    lists: dict[Any, Rows]
    """Lists of names that were read before: each step has the same ones several times."""


def alone() -> Context:
    """Of an event that refers to nothing."""
    return Context({}.get, lambda _: [], {})


class StoredRow(NamedTuple):
    """A row of the table `events`."""

    seq: int
    step: int
    t_ns: int
    rank: int
    kind: str
    request: str | None
    block: int | None
    payload: bytes


def decode(row: StoredRow, context: Context) -> Event:
    """The inverse of `Encoder.encode`. Raises BadEvent, which names the kind, for bytes that are no
    event."""
    cls = KINDS.get(row.kind)
    if cls is None:
        raise BadEvent(row.kind, "no such kind of event in this version of the contract")
    try:
        return _decode(plan_of(cls), row, context)
    except msgpack.UnpackException as error:
        why = f" ({error})" if str(error) else ""
        raise BadEvent(row.kind, f"the stored payload is not msgpack{why}") from error
    except WrongType as error:
        raise BadEvent(row.kind, f"the stored payload is damaged (it is not {error})") from error
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise BadEvent(row.kind, f"the stored payload is damaged ({error})") from error


def _decode(plan: Plan, row: StoredRow, context: Context) -> Event:
    stored, unknown = unpacked_payload(row.payload)
    if len(stored) > len(plan.fields):
        raise ValueError("it has more fields than this version of kvrewind knows")
    columns, fields = _reading(plan.cls)
    values: dict[str, Any] = {}
    name = ""
    try:
        for (name, required, unpack), value in zip(columns, (row.request, row.block), strict=True):
            if unpack is not None and (value is not None or required):
                values[name] = unpack(value, row.seq, context)
        for (name, required, unpack), value in zip(fields, stored, strict=False):
            if value is not None or required:
                values[name] = unpack(value, row.seq, context)
    except WrongType as error:
        raise ValueError(f"the field {name} is not {error}") from None
    for spec in plan.fields[len(stored) :]:
        if spec.required:
            if spec.shape != "any":
                raise ValueError(f"the field {spec.name} is missing")
            values[spec.name] = None
    if unknown is not None:
        values["unknown"] = _unpack_unknown(unknown, plan)
    return plan.cls(**values)


def unpacked_payload(payload: bytes) -> tuple[list[Any], dict[str, Any] | None]:
    unknown = None
    try:
        stored = msgpack.unpackb(payload, strict_map_key=True, ext_hook=ext_type)
    except msgpack.ExtraData as both:
        stored, unknown = (
            both.unpacked,
            msgpack.unpackb(both.extra, strict_map_key=True, ext_hook=ext_type),
        )
    if type(stored) is not list or not (unknown is None or type(unknown) is dict):
        raise ValueError("not an array of fields")
    return stored, unknown


Unpack = Callable[[Any, int, Context], Any]
"""(stored value, seq, context) -> value. Raises WrongType."""


@cache
def _reading(cls: type[Event]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Name, whether it is required, and what reads it: of the columns request and block (None where
    the event has no such field), and of the fields of the payload."""
    plan = plan_of(cls)
    columns = tuple(
        ("", False, None) if spec is None else (spec.name, spec.required, _unpack_for(spec))
        for spec in (plan.request, plan.block)
    )
    return columns, tuple((s.name, s.required, _unpack_for(s)) for s in plan.fields)


def _unpack_for(spec: FieldSpec) -> Unpack:
    if is_numbered(spec):
        return lambda value, _, context: _unpack_rows(spec, value, context)
    if spec.shape == "table":
        return lambda value, seq, context: unpack_table(value, seq, context.bases)
    if spec.words is not None:
        return lambda value, *_: _unpack_words(spec, value)
    unpack = UNPACK[spec.shape]
    return lambda value, *_: unpack(value)


def _unpack_rows(spec: FieldSpec, value: Any, context: Context) -> Rows:
    names = context.lists.get(value) if isinstance(value, msgpack.ExtType) else None
    if names is None:
        names = unpack_names(value, context.name_of)
        if len(context.lists) > _LISTS_KEPT:
            context.lists.clear()
        context.lists[value] = names
    if spec.shape == "names" and None in names:
        raise WrongType("a list of names without pads")
    return names


def _unpack_words(spec: FieldSpec, value: Any) -> Any:
    words = spec.words or ()
    if spec.shape != "words":
        if value not in words:
            raise WrongType(f"one of {', '.join(words)}")
        return value
    numbers = unpack_ints(value)
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(words):
        raise WrongType(f"made of {', '.join(words)}")
    return tuple(map(words.__getitem__, numbers))


def _unpack_unknown(unknown: dict[str, Any], plan: Plan) -> dict[str, Any]:
    if not plan.names.isdisjoint(unknown) or not RESERVED.isdisjoint(unknown):
        raise ValueError("a field of the row is repeated in the payload")
    return plain_of(unknown)


def _unpack_exactly(expected: type, what: str) -> Callable[[Any], Any]:
    def unpack(value: Any) -> Any:
        if type(value) is not expected:
            raise WrongType(what)
        return value

    return unpack


def unpack_tuple(item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def unpack(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise WrongType("a list")
        return tuple(map(item, value))

    return unpack


def plain_of(value: Any) -> Any:
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
        return plain_of(value)

    return unpack


UNPACK: Mapping[Shape, Callable[[Any], Any]] = {
    "int": _unpack_exactly(int, "an integer"),
    "float": _unpack_exactly(float, "a float"),
    "bool": _unpack_exactly(bool, "true or false"),
    "str": _unpack_exactly(str, "text"),
    "bytes": _unpack_exactly(bytes, "bytes"),
    "scalar": unpack_scalar,
    "list": _unpack_container(list, "a list"),
    "map": _unpack_container(dict, "a map"),
    "any": plain_of,
    "ints": unpack_ints,
    "floats": unpack_floats,
    "scalars": unpack_tuple(unpack_scalar),
    "names": unpack_tuple(_unpack_exactly(str, "text")),
}
"""How a stored value of each shape is read that refers to nothing else."""
