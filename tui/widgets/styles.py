"""The one place where roles become colours.

Owners follow Okabe and Ito, lightened for a dark ground; red is kept for findings alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.markup import escape
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from ..harmless import harmless
from ..presenters.spans import Line, fitted

INK = "#0c1015"
"""Text on a filled cell."""
GROUND = "#0f141a"
CURSOR = "#263445"
TEXT = "#d3dae3"
DIM = "#7f8b99"
BAD = "#ff6b64"
WARN = "#f2b84b"
GOOD = "#63d297"

OWNERS = (
    "#56b4e9",  # sky blue
    "#e69f00",  # orange
    "#2fc79a",  # bluish green
    "#f0e442",  # yellow
    "#d58fbf",  # reddish purple
    "#93a4ff",  # periwinkle
    "#c8a27a",  # tan
    "#b5d86a",  # lime
    "#c9d1da",  # silver
    "#6fd6e3",  # cyan
    "#7f8b99",  # pads
)

BASE = Style(color=TEXT, bgcolor=GROUND)
ON_CURSOR = Style(color=TEXT, bgcolor=CURSOR)

CELL_GROUND = "#1a222c"

ROLES = {
    "text": Style(color=TEXT),
    "strong": Style(color="#f4f7fa", bold=True),
    "dim": Style(color=DIM),
    "bad": Style(color=BAD, bold=True),
    "warn": Style(color=WARN),
    "good": Style(color=GOOD),
    "place": Style(color="#a9b6c6"),
    "block": Style(color="#f4f7fa"),
    "kind": Style(color="#a9b6c6"),
    "kind.block": Style(color="#a9c7e8"),
    "kind.request": Style(color="#f4f7fa"),
    "kind.step": Style(color="#f4f7fa", bold=True),
    "bad.fill": Style(color="#ffffff", bgcolor="#c3312b", bold=True),
    "warn.fill": Style(color=INK, bgcolor=WARN, bold=True),
    "good.fill": Style(color=INK, bgcolor=GOOD, bold=True),
    "dim.fill": Style(color=TEXT, bgcolor="#35414f"),
    "cell.free": Style(color="#5f6b78", bgcolor=CELL_GROUND),
    "here": Style(color="#f4f7fa", bgcolor=CURSOR, bold=True),
    "phase.prefill": Style(color="#5b9df5"),
    "phase.mixed": Style(color="#a98bf5"),
    "phase.decode": Style(color="#8fa0b3"),
}

ADDED = {
    "mark": Style(bold=True),
    "picked": Style(bold=True, underline=True),
}


@cache
def style_of(role: str) -> Style:
    """A role, or `owner3`: text in that owner's colour. After it may come `.fill` (a filled cell),
    `.cached` (an outlined one), `.mark` (a sign in it) and `.picked`."""
    name, *variants = role.split(".")
    if not name.startswith("owner"):
        plain = [part for part in variants if part not in ADDED]
        style = ROLES[".".join((name, *plain))]
    else:
        style = _owner_style(OWNERS[int(name.removeprefix("owner"))], variants)
    for part in variants:
        style += ADDED.get(part, Style())
    return style


def _owner_style(colour: str, variants: Sequence[str]) -> Style:
    if "fill" in variants:
        return Style(color=INK, bgcolor=colour)
    if "cached" in variants:
        return Style(color=colour, bgcolor=CELL_GROUND, italic=True)
    return Style(color=colour)


@cache
def _over(role: str, base: Style) -> Style:
    return base + style_of(role)


def strip_of(line: Line, width: int, base: Style = BASE) -> Strip:
    """A line as cells, filled up or cut to `width`."""
    shown, taken = fitted(line, width)
    segments = [Segment(harmless(span.text), _over(span.role, base)) for span in shown if span.text]
    if taken < width:
        segments.append(Segment(" " * (width - taken), base))
    return Strip(segments, width)


def blank(width: int) -> Strip:
    return Strip([Segment(" " * width, BASE)], width)


def text_of(lines: Sequence[Line]) -> Text:
    """Lines for a `Static`."""
    text = Text(no_wrap=True, end="")
    for index, line in enumerate(lines):
        text.append("\n" if index else "")
        for span in line:
            text.append(span.text, style_of(span.role))
    return text


def markup_of(line: Line) -> str:
    """A line for a border title."""
    return "".join(f"[{style_of(span.role)}]{escape(span.text)}[/]" for span in line)
