"""The two places a command writes to: data to standard output, all else to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console


def out() -> Console:
    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def say(text: str) -> None:
    """A remark that isn't data."""
    err().print(text, markup=False)


def print_json(value: Any) -> None:
    """One JSON value and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
