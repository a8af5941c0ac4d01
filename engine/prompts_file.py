"""Reads a prompts file: one prompt a line, or JSON lines.

JSON fields: `prompt` (text) or `prompt_tokens`, and optionally those of `PromptSpec`. Names
default to r0, r1, ... in the order of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..recorder.errors import BadInput
from .workload import PromptSpec

_FIELDS = tuple(f.name for f in fields(PromptSpec))
_INTEGERS = ("max_new_tokens", "arrival_step", "abort_step")
_LATER = {"adapter": None, "extra_keys": None, "priority": 0, "n": 1}
"""Fields that the engine can't honour yet, with the one value that asks for nothing."""


class BadPrompts(BadInput):
    """A prompts file can't be read, or a line of it isn't a prompt."""


def read_prompts(path: Path | str) -> tuple[PromptSpec, ...]:
    """Raises `BadPrompts`, naming the file and the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise BadPrompts(
            f"{path} can't be read: {error.strerror}; give a file of prompts"
        ) from None
    except UnicodeDecodeError:
        raise BadPrompts(f"{path} isn't text; give one prompt a line, or JSON lines") from None
    specs = tuple(_specs(path, lines))
    if not specs:
        raise BadPrompts(f"{path} has no prompts; give one prompt a line, or JSON lines")
    return specs


def _specs(path: Path | str, lines: list[str]) -> Iterator[PromptSpec]:
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    in_json = bool(filled) and filled[0][1].lstrip().startswith("{")
    if filled and _is_array(filled[0][1]):
        raise BadPrompts(f"{path} is one JSON array; write its objects one a line, without commas")
    seen: dict[str, int] = {}
    for count, (number, line) in enumerate(filled):
        where = f"{path}, line {number}"
        given = _object(where, line) if in_json else {"prompt": line.strip()}
        spec = _spec(where, given, f"r{count}")
        if spec.request in seen:
            raise BadPrompts(
                f"{where}: request {spec.request!r} was on line {seen[spec.request]} already; "
                "give each its own name"
            )
        seen[spec.request] = number
        yield spec


def _is_array(line: str) -> bool:
    """Whether a file that begins so is JSON, but not JSON lines."""
    return line.strip() == "[" or line.lstrip().startswith("[{")


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadPrompts(f"{where} isn't JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(given, dict):
        raise BadPrompts(f"{where} must be a JSON object with `prompt` or `prompt_tokens`")
    return given


def _spec(where: str, given: dict[str, Any], name: str) -> PromptSpec:
    for field, nothing in _LATER.items():
        if given.pop(field, None) not in (None, nothing):
            raise BadPrompts(f"{where}: this engine can't honour {field!r} yet; leave it out")
    for field in given:
        if field not in _FIELDS:
            near = get_close_matches(field, _FIELDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_FIELDS)}"
            raise BadPrompts(f"{where}: there is no field {field!r}; {hint}")
    if ("prompt" in given) == ("prompt_tokens" in given):
        raise BadPrompts(f"{where}: give either `prompt` or `prompt_tokens`")
    _check_types(where, given)
    if "prompt_tokens" in given:
        given["prompt_tokens"] = tuple(given["prompt_tokens"])
    fields: dict[str, Any] = {"request": name} | given
    return PromptSpec(**fields)


def _check_types(where: str, given: dict[str, Any]) -> None:
    for field, value in given.items():
        if not _fits(field, value):
            raise BadPrompts(f"{where}: {field} can't be {json.dumps(value)[:60]}")


def _fits(field: str, value: Any) -> bool:
    match field:
        case "prompt_tokens":
            return isinstance(value, list) and all(type(token) is int for token in value)
        case "ignore_eos":
            return type(value) is bool
        case "prompt":
            return isinstance(value, str) and bool(value)
        case "request":  # a name is printed wherever the trace is
            return isinstance(value, str) and bool(value.strip()) and value.isprintable()
        case "passphrase":
            return value is None or isinstance(value, str)
        case _ if field in _INTEGERS:
            optional = field != "arrival_step"
            return (value is None and optional) or (type(value) is int and value >= 1)
        case _:
            return value is None or type(value) in (str, int)
