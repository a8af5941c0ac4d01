"""Settings to compare: every combination of the values given for some switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import Any, Literal, get_origin, get_type_hints

from ..engine.config import EngineConfig
from ..recorder.errors import BadInput

VARIATIONS: Mapping[str, Any] = {"speed": float, "priorities": bool}
"""What can be compared besides switches of the engine: how the workload is asked."""

_TRUE, _FALSE = ("on", "yes", "true"), ("off", "no", "false")

MOST_SETTINGS = 256


@dataclass(frozen=True, slots=True)
class Comparison:
    """One switch, or variation of the workload, and the values to try."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> Comparison:
        """From `reuse=first-freed,quarantine=8`. Raises `BadInput`."""
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        parse = _parser(name, text)
        parts = [part.strip() for part in values.split(",")]
        if not equals or not all(parts):
            raise BadInput(f"--compare {text} needs values, as in {name}=A,B")
        if len(set(parts)) < len(parts):
            raise BadInput(f"--compare {text} names a value twice; leave one out")
        return cls(name, tuple(parse(part) for part in parts))


def settings(comparisons: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """Every combination, the last comparison varying fastest. Raises `BadInput`."""
    names = [comparison.name for comparison in comparisons]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"--compare names {name} twice; give all its values at once")
    combinations = list(product(*(comparison.values for comparison in comparisons)))
    if len(combinations) > MOST_SETTINGS:
        raise BadInput(f"--compare asks for {len(combinations)} runs; {MOST_SETTINGS} are the most")
    for values in combinations:
        yield dict(zip(names, values, strict=True))


def _parser(name: str, text: str) -> Callable[[str], Any]:
    hints = {**get_type_hints(EngineConfig), **VARIATIONS}
    del hints["faults"]
    if name not in hints:
        near = get_close_matches(name, hints, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(hints)}"
        raise BadInput(f"--compare {text}: there is no switch {name!r}; {hint}")
    hint = hints[name]
    kind = str if get_origin(hint) is Literal else hint

    def parse(value: str) -> Any:
        try:
            return _as_bool(value) if kind is bool else kind(value)
        except ValueError:
            wanted = {bool: "on or off", int: "whole numbers", float: "numbers"}[kind]
            raise BadInput(f"--compare {name} can't be {value!r}; give {wanted}") from None

    return parse


def _as_bool(value: str) -> bool:
    if value.lower() not in _TRUE + _FALSE:
        raise ValueError
    return value.lower() in _TRUE
