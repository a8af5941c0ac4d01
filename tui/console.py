"""The two places a command writes to: data to standard output, all else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .harmless import harmless

WIDTH_OF_FILES = 100
"""Columns for what goes into a file or a pipe; a terminal says its own."""


class PlainConsole(Console):
    """A console that says what a trace holds, and does nothing that a trace says.

    Names and tokens may come from anybody's file; an escape sequence in one stays visible. And a
    closed pipe is an exception: left alone, rich exits with 1, which is a finding's status.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else harmless(text), style, control)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def out() -> Console:
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else WIDTH_OF_FILES
    return PlainConsole(file=stream, highlight=False, markup=False, emoji=False, width=width)


def say(text: str) -> None:
    """A remark that isn't data."""
    err().print(text, markup=False, soft_wrap=True)


def say_meanwhile(text: str) -> None:
    """A remark while a progress bar may be drawn, from any thread: the bar makes room for it."""
    print(harmless(text), file=sys.stderr)  # rich's own consoles write past the bar's stand-in


def print_json(value: Any) -> None:
    """One JSON value and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
