"""The fields of an event as the codecs see them, read off its annotations."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .events import Event, Floats, Ints, Names, Rows, Scalar, Table

Shape = Literal[
    "int", "float", "bool", "str", "bytes", "scalar", "list", "map", "any",
    "ints", "floats", "names", "rows", "scalars", "words", "table",
]  # fmt: skip


class FieldSpec(NamedTuple):
    """One field of an event as the codecs see it."""

    name: str
    shape: Shape
    required: bool
    words: tuple[str, ...] | None
    """The closed set that a `str` or each of `words` must be from."""


_SHAPES: Mapping[Any, Shape] = {
    int: "int", float: "float", bool: "bool", str: "str", bytes: "bytes", Any: "any",
    Scalar: "scalar", Ints: "ints", Floats: "floats", Names: "names", Rows: "rows",
    tuple[Scalar, ...]: "scalars", Table: "table",
    list[Any]: "list", dict[str, Any]: "map",
}  # fmt: skip


def _shape_of(hint: Any) -> tuple[Shape, tuple[str, ...] | None]:
    if hint in _SHAPES:
        return _SHAPES[hint], None
    if get_origin(hint) in (Union, types.UnionType):
        alternatives = [a for a in get_args(hint) if a is not type(None)]
        inner = alternatives[0] if len(alternatives) == 1 else Union[tuple(alternatives)]  # noqa: UP007
        return _shape_of(inner)
    if get_origin(hint) is Literal:
        return "str", get_args(hint)
    if get_origin(hint) is tuple and get_origin(get_args(hint)[0]) is Literal:
        return "words", get_args(get_args(hint)[0])
    raise TypeError(f"no codec for the annotation {hint!r}")


@cache
def fields_of(cls: type[Event]) -> tuple[FieldSpec, ...]:
    """The fields of an event class, in declaration order, `decision` first, `unknown` left out."""
    hints = get_type_hints(cls)
    return tuple(
        FieldSpec(f.name, *_order(_shape_of(hints[f.name]), _is_required(f)))
        for f in fields(cls)
        if f.name != "unknown"
    )


def _order(
    shape: tuple[Shape, tuple[str, ...] | None], required: bool
) -> tuple[Shape, bool, tuple[str, ...] | None]:
    return shape[0], required, shape[1]


def _is_required(f: Any) -> bool:
    return f.default is MISSING and f.default_factory is MISSING
