"""Reads a file of prompts: one prompt a line, JSON lines, or a Mooncake request trace.

JSON fields: `prompt` (text) or `prompt_tokens`, and optionally those of `PromptSpec`. Names
default to r0, r1, ... in the order of the file. A file whose first line has the fields of a
Mooncake trace is read as one (`workloads/mooncake.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from .workloads.fields import as_field, check, unknown_field
from .workloads.lines import BadPrompts, Line, json_object, read_lines, refuse_repeated
from .workloads.mooncake import is_mooncake, read_mooncake
from .workloads.spec import PromptSpec

__all__ = ["BadPrompts", "read_prompts"]

_FIELDS = tuple(f.name for f in fields(PromptSpec))


def read_prompts(path: Path | str, first: int | None = None) -> tuple[PromptSpec, ...]:
    """All of them, or the `first` of them. Raises `BadPrompts`, naming the file and the line."""
    lines = read_lines(path)
    if not lines:
        raise BadPrompts(f"{path} has no prompts; give one prompt a line, or JSON lines")
    begin = lines[0].text.lstrip()
    if begin.startswith("[{") or begin.strip() == "[":
        raise BadPrompts(f"{path} is one JSON array; write its objects one a line, without commas")
    if not begin.startswith("{"):
        return tuple(
            PromptSpec(request=f"r{count}", prompt=line.text.strip())
            for count, line in enumerate(lines[:first])
        )
    if is_mooncake(lines[0]):
        return read_mooncake(lines, first)
    return tuple(_specs(lines))[:first]


def _specs(lines: tuple[Line, ...]) -> Iterator[PromptSpec]:
    seen: dict[str, int] = {}
    for count, line in enumerate(lines):
        given = json_object(line, "`prompt` or `prompt_tokens`")
        spec = _spec(line.where, given, f"r{count}")
        refuse_repeated(line, spec.request, seen)
        yield spec


def _spec(where: str, given: dict[str, Any], name: str) -> PromptSpec:
    for field in given:
        if field not in _FIELDS:
            raise unknown_field(where, field, _FIELDS)
    if ("prompt" in given) == ("prompt_tokens" in given):
        raise BadPrompts(f"{where}: give either `prompt` or `prompt_tokens`")
    check(where, given)
    held: dict[str, Any] = {"request": name}
    held |= {field: as_field(field, value) for field, value in given.items()}
    return PromptSpec(**held)
