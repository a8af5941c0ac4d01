"""Events to bytes, as `codec` says they are laid out.

Each class of events gets a function of its own, made once: this is what a recorder spends its time
on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack

from .arrays import IntPacker, one_nan, pack_floats, value_packer
from .codec import RESERVED, Plan, is_numbered, plan_of
from .errors import BadEvent
from .events import Event
from .fields import FieldSpec
from .names import NameTable
from .plain import canonical
from .tables import TableEncoder

_INT64 = 1 << 63


class Encoded(NamedTuple):
    """An event as the trace stores it, and what its digests are taken over."""

    request: str | None
    block: int | None
    payload: bytes
    exact: bytes
    """The canonical payload, with nil for float-shaped fields."""
    floats: bytes
    """The float-shaped fields alone; empty when there are none."""


EncodeClass = Callable[[Any, int, int], tuple[str | None, int | None, bytes, bytes, bytes]]
"""(event, seq, rank) -> the fields of Encoded."""


class Encoder:
    """Encodes the events of one trace in their order, for one thread."""

    def __init__(self) -> None:
        self.names = NameTable()
        self.tables = TableEncoder()
        self._ints = IntPacker()
        self._pack = value_packer()
        self._of_class: dict[type[Event], EncodeClass] = {}

    def encode(self, event: Event, seq: int = 0, rank: int = 0) -> Encoded:
        """Raises BadEvent for what a trace can't hold."""
        cls = type(event)
        try:
            return Encoded(*self.of_class(cls)(event, seq, rank))
        except UNFIT as error:
            raise BadEvent(cls.__name__, str(error)) from error

    def of_class(self, cls: type[Event]) -> EncodeClass:
        """What encodes events of that class. It raises one of UNFIT for what can't be stored."""
        known = self._of_class.get(cls)
        if known is None:
            plan = plan_of(cls)
            known = self._special(plan) if plan.is_special else self._simple(plan)
            self._of_class[cls] = known
        return known

    def tidy(self) -> None:
        """Between steps: lets go of what is unlikely to come again."""
        self._ints.forget()
        self.names.tidy()

    def forget(self) -> None:
        """What comes from now on can be read without anything that came before."""
        self.names.forget()
        self.tables.forget()

    # --- one function a class ---------------------------------------------------------------------

    def _simple(self, plan: Plan) -> EncodeClass:
        """Of events that are stored as they are canonical."""
        pack, values_of, convert = self._pack, plan.values, self._converters(plan)
        has_request, has_block = plan.request is not None, plan.block is not None
        integers = _integers(plan)

        def encode(event: Any, seq: int, rank: int) -> Any:
            values = list(values_of(event))
            for index in integers:
                value = values[index]
                if type(value) is not int or not -_INT64 <= value < _INT64:
                    values[index] = None if value is None else _int64(value)
            for index, converted in convert:
                value = values[index]
                if value is not None:
                    values[index] = converted(value)
            while values and values[-1] is None:
                values.pop()
            payload = pack(values)
            if event.unknown:
                payload += self._unknown(event.unknown, plan)
            request = event.request if has_request else None
            if type(request) is not str and request is not None:
                request = _text(request)
            block = event.block if has_block else None
            if has_block and (type(block) is not int or not -_INT64 <= block < _INT64):
                block = _int64(block)
            return request, block, payload, payload, b""

        return encode

    def _special(self, plan: Plan) -> EncodeClass:
        """Of events with names, tables or floats."""
        pack, values_of = self._pack, plan.values
        convert, replace = self._converters(plan), self._replacers(plan)
        integers = _integers(plan)

        def encode(event: Any, seq: int, rank: int) -> Any:
            canon = list(values_of(event))
            for index in integers:
                if canon[index] is not None:
                    canon[index] = _int64(canon[index])
            for index, converted in convert:
                value = canon[index]
                if value is not None:
                    canon[index] = converted(value)
            stored = canon.copy()
            floats: list[Any] = []
            for index, replaced in replace:
                value = canon[index]
                if value is not None:
                    stored[index], canon[index] = replaced(value, event, seq, rank)
                    if canon[index] is None:
                        floats.append((index, stored[index]))
            unknown = self._unknown(event.unknown, plan) if event.unknown else b""
            return (
                None if plan.request is None or event.request is None else _text(event.request),
                None if plan.block is None else _int64(event.block),
                pack(_trimmed(stored)) + unknown,
                pack(_trimmed(canon)) + unknown,
                pack(floats) if floats else b"",
            )

        return encode

    def _converters(self, plan: Plan) -> list[tuple[int, Callable[[Any], Any]]]:
        """By index, what makes both forms of a field."""
        found = [(index, self._converter(spec)) for index, spec in enumerate(plan.fields)]
        return [(index, convert) for index, convert in found if convert is not None]

    def _converter(self, spec: FieldSpec) -> Callable[[Any], Any] | None:
        if spec.shape == "words":
            return self._words(spec.words or ())
        if spec.shape == "ints":
            return self._ints.pack
        return {"list": canonical, "map": _plain, "any": _plain}.get(spec.shape)

    def _words(self, words: tuple[str, ...]) -> Callable[[tuple[str, ...]], msgpack.ExtType]:
        """As numbers, in the order in which the class declares the words."""
        number = {word: index for index, word in enumerate(words)}
        packed: dict[tuple[str, ...], msgpack.ExtType] = {}

        def convert(given: tuple[str, ...]) -> msgpack.ExtType:
            known = packed.get(given)
            if known is None:
                for word in given:
                    if word not in number:
                        raise ValueError(f"{word!r} is not one of {', '.join(words)}")
                if len(packed) > 64:
                    packed.clear()
                known = self._ints.pack(tuple([number[word] for word in given]))
                packed[given] = known
            return known

        return convert

    def _replacers(self, plan: Plan) -> list[tuple[int, Callable[..., tuple[Any, Any]]]]:
        """By index, what makes the stored and the canonical form; the latter None for floats."""
        found: list[tuple[int, Callable[..., tuple[Any, Any]]]] = []
        for index, spec in enumerate(plan.fields):
            if is_numbered(spec):
                found.append((index, lambda names, *_: self.names.pack(names)))
            elif spec.shape == "table":
                found.append((index, self._table))
            elif spec.shape == "floats":
                found.append((index, lambda floats, *_: (pack_floats(floats), None)))
            elif spec.shape == "float":
                found.append((index, lambda number, *_: (one_nan(float(number)), None)))
        return found

    def _table(self, rows: Any, event: Any, seq: int, rank: int) -> tuple[Any, Any]:
        return self.tables.pack(seq, rank, event.group, event.requests, rows)

    def _unknown(self, unknown: Mapping[str, Any], plan: Plan) -> bytes:
        fields = canonical(dict(unknown))
        for name in fields:
            if name in plan.names or name in RESERVED:
                raise ValueError(f"the unknown field {name!r} has the name of a known one")
        return self._pack(fields)


UNFIT = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoding raises for an event that a trace can't hold."""


def encode(event: Event) -> Encoded:
    """One event by itself, as the first of a trace would be."""
    return Encoder().encode(event)


def canonical_encoder() -> Callable[[Event], tuple[bytes, bytes]]:
    """Gives the canonical payload of any event, without floats, and the floats: two events of one
    kind, request and block are equal when these are."""
    encoder = Encoder()

    def encode_canonical(event: Event) -> tuple[bytes, bytes]:
        encoded = encoder.encode(event)
        encoder.tidy()
        return encoded.exact, encoded.floats

    return encode_canonical


def _integers(plan: Plan) -> tuple[int, ...]:
    """Indexes of the fields that are one integer."""
    return tuple(index for index, spec in enumerate(plan.fields) if spec.shape == "int")


def _trimmed(values: Any) -> Any:
    """Without the Nones at the end: a field that is added there changes no bytes."""
    end = len(values)
    while end and values[end - 1] is None:
        end -= 1
    return values[:end]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("the field request is not text")
    return value


def _plain(value: Any) -> Any:
    """`canonical`, and at once for the small maps that most are."""
    if type(value) is not dict:
        return canonical(value)
    for key, item in value.items():
        kind = type(item)
        if type(key) is not str or not key.isascii():
            return canonical(value)
        if kind is str:
            if not item.isascii():
                return canonical(value)
        elif kind is int:
            if not -_INT64 <= item < _INT64:
                return canonical(value)
        elif kind is not bool and item is not None:
            return canonical(value)
    keys = sorted(value)
    return value if keys == list(value) else {key: value[key] for key in keys}


def _int64(value: Any) -> int:
    number = value if type(value) is int else int(value)
    if not -_INT64 <= number < _INT64:
        raise ValueError("an integer doesn't fit into 64 bits")
    return number
