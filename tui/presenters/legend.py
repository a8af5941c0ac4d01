"""What signs and colours mean, and which keys there are."""

from __future__ import annotations

from .blame import CULPRIT, DETECTED
from .blocks import READ, WRITTEN
from .spans import Line, Span
from .steps import PREEMPTED

KEYS: tuple[tuple[str, str], ...] = (
    ("n p  → ←", "next, previous event"),
    ("N P  ] [", "next, previous step"),
    ("home end", "first, last event"),
    ("F", "follow a run that is being recorded, or stay"),
    ("g", "go to a position (step:seq)"),
    ("f", "next finding"),
    ("c", "the culprit of this finding, or of the first"),
    ("b", "back to where the last jump came from"),
    (". ,", "next, previous request"),
    ("tab", "next pane; arrows move in it, enter follows a line"),
    ("esc", "let go of a picked block or request"),
    ("z", "one pane alone, and back"),
    ("r", "re-execute under other switches, and check"),
    ("?", "this page"),
    ("q", "quit"),
)


def steps_legend() -> Line:
    return (
        Span("▇", "phase.prefill"), Span(" prefill ", "dim"),
        Span("▇", "phase.mixed"), Span(" both ", "dim"),
        Span("▇", "phase.decode"), Span(" decode ", "dim"),
        Span(PREEMPTED, "warn"), Span(" preempted ", "dim"),
        Span(CULPRIT, "bad"), Span(" culprit ", "dim"),
        Span(DETECTED, "bad"), Span(" detected ", "dim"),
    )  # fmt: skip


def grid_legend(request: str | None) -> Line:
    """Most needed first, since a narrow grid cuts the end."""
    return (
        Span(READ, "strong"), Span(f" {request or 'selected'} reads ", "dim"),
        Span(WRITTEN, "strong"), Span(" written ", "dim"),
        Span(CULPRIT, "bad"), Span(" blamed ", "dim"),
        Span(" ", "owner0.fill"), Span(" held ", "dim"),
        Span("a", "owner0.cached"), Span(" cached", "dim"),
    )  # fmt: skip


def help_lines() -> list[Line]:
    keys: list[Line] = [(Span(f" {key:<10}", "strong"), Span(what, "text")) for key, what in KEYS]
    return [*keys, (), (Span(" Steps   ", "strong"), *steps_legend()), *_about_blocks()]


def _about_blocks() -> list[Line]:
    indent = Span("         ")
    return [
        (Span(" Blocks  ", "strong"), Span("are coloured by whose tokens they hold")),
        (indent, Span("r0→r2+1", "owner0.fill"), Span(" r0's; r2 and one more hold it too")),
        (indent, Span(" r0 ", "owner0.fill"), Span(" held by somebody")),
        (indent, Span(" r0 ", "owner0.cached"), Span(" held by nobody, but its key can be found")),
        (indent, Span(" ·  ", "cell.free"), Span(" free")),
        (indent, Span(READ, "strong"), Span(" read by the selected request")),
        (indent, Span(WRITTEN, "strong"), Span(" written in this step")),
        (indent, Span(CULPRIT, "bad"), Span(" a finding is about it")),
        (Span(" Tables  ", "strong"), Span("show in "), Span("red", "bad"),
         Span(" tokens that are not the request's own")),
    ]  # fmt: skip
