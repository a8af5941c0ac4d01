"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter, Token

from ..engine.config import SECTIONS, EngineConfig
from ..recorder.stores.address import Place, place_of

Format = Literal["text", "json"]

_GROUPS = {
    section: Group(f"Switches: {section}", sort_key=number)
    for number, section in enumerate(SECTIONS)
}
_SPELLED = {"faults": "--fault"}
"""Switches that the command line spells otherwise than their field."""


def _option(switch: Field[Any], hint: Any, default: str | bool) -> Any:
    how: dict[str, Any] = {
        "help": switch.metadata["help"],
        "group": _GROUPS[switch.metadata["section"]],
        "show_default": default,
    }
    if switch.name in _SPELLED:
        how |= {"name": _SPELLED[switch.name], "negative": ()}
    if hint is int:
        how["converter"] = _whole_number
    return Annotated[hint | None, Parameter(**how)]


def _whole_number(hint: Any, tokens: Sequence[Token]) -> int:
    """Cyclopts would round. Raises `ValueError`, which it makes a sentence of."""
    text = tokens[0].value
    if not re.fullmatch("[+-]?[0-9]{1,20}", text):
        raise ValueError(f"give a whole number, not {text!r}.")
    return int(text)


Count = Annotated[int, Parameter(converter=_whole_number)]
"""A whole number as an option."""
MaybeCount = Annotated[int | None, Parameter(converter=_whole_number)]
"""One that needn't be given."""


def _place(hint: Any, tokens: Sequence[Token]) -> Place:
    """Cyclopts makes one sentence of a `ValueError`; ours are one already."""
    return place_of(tokens[0].value)


Trace = Annotated[Any, Parameter(converter=_place, accepts_keys=False, n_tokens=1)]
"""A trace to read, as a `Place`: the path of a file, or the URL of a run in a database."""


def _default(switch: Field[Any]) -> str | bool:
    match switch.default:
        case bool():
            return "on" if switch.default else "off"
        case ():
            return False
        case _:
            return str(switch.default)


def _switches(name: str, default: Callable[[Field[Any]], str | bool]) -> type:
    hints = get_type_hints(EngineConfig)
    options = [
        (f.name, _option(f, hints[f.name], default(f)), field(default=None))
        for f in fields(EngineConfig)
    ]
    cls = make_dataclass(name, options, frozen=True)
    cls.__module__ = __name__  # cyclopts takes apart only classes that somebody wrote
    return Parameter(name="*")(cls)


Switches: Any = _switches("Switches", _default)
"""Every field of `EngineConfig` as an option; None where the user didn't say."""

ChangedSwitches: Any = _switches("ChangedSwitches", lambda _: False)
"""The same for a run that was recorded: what isn't given is as it was then."""


def given(switches: Any) -> Mapping[str, Any]:
    """The switches that the user set."""
    return {name: value for name, value in asdict(switches).items() if value is not None}


def unused_path(stem: str, suffix: str = ".kvtrace") -> Path:
    """`stem.kvtrace`, or the first of `stem-2.kvtrace`, ... that doesn't exist."""
    path, count = Path(f"{stem}{suffix}"), 1
    while path.exists():
        count += 1
        path = Path(f"{stem}-{count}{suffix}")
    return path
