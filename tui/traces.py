"""Traces as commands use them: opened, read whole, and with what is wrong with them said once."""

from __future__ import annotations

from pathlib import Path

from ..recorder.events import Envelope
from ..recorder.reader import TraceReader
from ..replay.check import check
from ..replay.verdict import Report
from .console import say


def read_all(reader: TraceReader) -> list[Envelope]:
    """Every event that can be trusted; what is wrong with the file goes to standard error."""
    for problem in reader.problems:
        say(f"{reader.path}: {problem}")
    return list(reader.envelopes())


def check_trace(path: Path) -> tuple[list[Envelope], Report]:
    with TraceReader(path) as reader:
        envelopes = read_all(reader)
        return envelopes, check(envelopes, problems=reader.problems)
