"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter

from ..engine.config import EngineConfig

Format = Literal["text", "json"]

_GROUP = Group("Switches of the engine")
_SPELLED = {"faults": "--fault"}
"""Switches that the command line spells otherwise than their field."""


def _option(name: str, help: str, hint: Any) -> Any:
    how: dict[str, Any] = {"help": help, "group": _GROUP}
    if name in _SPELLED:
        how |= {"name": _SPELLED[name], "negative": ()}
    return Annotated[hint | None, Parameter(**how)]


def _switches() -> type:
    hints = get_type_hints(EngineConfig)
    options = [
        (f.name, _option(f.name, f.metadata["help"], hints[f.name]), field(default=None))
        for f in fields(EngineConfig)
    ]
    cls = make_dataclass("Switches", options, frozen=True)
    cls.__module__ = __name__  # cyclopts takes apart only classes that somebody wrote
    return Parameter(name="*")(cls)


Switches: Any = _switches()
"""Every field of `EngineConfig` as an option; None where the user didn't say."""


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
