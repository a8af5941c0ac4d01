"""Text with roles: what presenters give to widgets, which alone know colours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

OWNER_COLOURS = 10
"""How many owners can be told apart by colour; their tags tell the rest."""


class Span(NamedTuple):
    """A piece of text and what it is: `text`, `dim`, `bad`, `owner3`, `owner3.fill`, ..."""

    text: str
    role: str = "text"


Line = tuple[Span, ...]


class Row(NamedTuple):
    """A line of a list, and where a click on it leads."""

    line: Line
    seq: int | None = None
    block: int | None = None
    request: str | None = None


def plain(line: Iterable[Span]) -> str:
    return "".join(span.text for span in line)


def joined(lines: Iterable[Line], gap: str = " ") -> Line:
    """Lines after each other in one."""
    out: list[Span] = []
    for line in lines:
        if out and line:
            out.append(Span(gap))
        out.extend(line)
    return tuple(out)


def wrapped(text: str, width: int, role: str = "text", indent: str = "") -> list[Line]:
    """A paragraph as lines of at most `width` cells."""
    room = max(width, len(indent) + 12)
    lines = textwrap.wrap(
        text, room, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return [(Span(line, role),) for line in lines]


def width_of(text: str) -> int:
    """Cells that a text takes; some signs take two, some none."""
    return len(text) if text.isascii() else cell_len(text)


def fitted(line: Line, width: int) -> tuple[Line, int]:
    """A line cut to `width` cells, with an ellipsis where something was cut, and its width."""
    total = sum(width_of(span.text) for span in line)
    if total <= width:
        return line, total
    out: list[Span] = []
    room = max(width - 1, 0)
    for span in line:
        taken = width_of(span.text)
        if taken > room:
            out.append(Span(set_cell_size(span.text, room) + "…", span.role))
            break
        out.append(span)
        room -= taken
    return tuple(out), width


def flowed(pieces: Sequence[Line], width: int, indent: str = "", gap: str = "  ") -> list[Line]:
    """Pieces that don't break, laid out on as many lines as they need."""
    lines: list[Line] = []
    current: Line = ()
    for piece in pieces:
        candidate = joined((current, piece), gap) if current else (Span(indent), *piece)
        if current and width_of(plain(candidate)) > width:
            lines.append(current)
            candidate = (Span(indent), *piece)
        current = candidate
    return [*lines, current] if current else lines


def ranges(numbers: Sequence[int]) -> str:
    """`0-3 7`: ascending numbers with runs written short."""
    parts: list[str] = []
    start = 0
    for i in range(1, len(numbers) + 1):
        if i < len(numbers) and numbers[i] == numbers[i - 1] + 1:
            continue
        first, last = numbers[start], numbers[i - 1]
        parts.append(str(first) if first == last else f"{first}-{last}")
        start = i
    return " ".join(parts)


def counted(count: int, noun: str) -> str:
    """`1 block`, `3 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
