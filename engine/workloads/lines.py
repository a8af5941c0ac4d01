"""The lines of a file of prompts or requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ...recorder.errors import BadInput


class BadPrompts(BadInput):
    """A file of prompts or requests can't be read, or a line of it isn't one."""


class Line(NamedTuple):
    """A line that isn't blank; `where` names the file and the line."""

    number: int
    where: str
    text: str


def read_lines(path: Path | str) -> tuple[Line, ...]:
    """Lines end with a newline and nothing else: JSON strings may hold other separators."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadPrompts(
            f"{path} can't be read: {error.strerror}; give a file of prompts"
        ) from None
    except UnicodeDecodeError:
        raise BadPrompts(f"{path} isn't text; give one prompt a line, or JSON lines") from None
    except ValueError as error:  # a path with a null byte
        raise BadPrompts(f"{path!r} can't be read: {error}; give a file of prompts") from None
    lines = enumerate(text.split("\n"), 1)
    return tuple(Line(n, f"{path}, line {n}", line) for n, line in lines if line.strip())


def json_object(line: Line, wanted: str) -> dict[str, Any]:
    """`wanted` says which fields make a line complete. Raises `BadPrompts`."""
    try:
        given = json.loads(line.text)
    except json.JSONDecodeError as error:
        raise BadPrompts(f"{line.where} isn't JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number, or a nesting, without end
        raise BadPrompts(f"{line.where} isn't usable JSON: {error}; shorten it") from None
    if not isinstance(given, dict):
        raise BadPrompts(f"{line.where} must be a JSON object with {wanted}")
    return given


def refuse_repeated(line: Line, name: str, seen: dict[str, int]) -> None:
    """`seen`: request name -> its line; grows by this one. Raises `BadPrompts`."""
    if name in seen:
        raise BadPrompts(
            f"{line.where}: request {name!r} was on line {seen[name]} already; "
            "give each its own name"
        )
    seen[name] = line.number
