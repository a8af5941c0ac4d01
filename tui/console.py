"""The two places a command writes to: data to standard output, all else to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn, TextIO

from rich.console import Console

WIDTH_OF_FILES = 100
"""Columns for what goes into a file or a pipe; a terminal says its own."""


class Pipe(Console):
    """A console whose closed pipe is an exception: left alone, rich exits with 1, a finding's."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def out() -> Console:
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else WIDTH_OF_FILES
    return Pipe(file=stream, highlight=False, width=width)


def say(text: str) -> None:
    """A remark that isn't data."""
    err().print(text, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
