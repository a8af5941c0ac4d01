"""`kvrewind check`: who read whose memory, and which decision allowed it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ...recorder.reader import TraceReader
from ...replay.check import check as check_events
from ...replay.report import render
from ...replay.selection import narrowed
from ..console import out, print_json
from ..options import Format, Trace
from ..traces import read_all


def check(
    trace: Trace,
    /,
    *,
    only: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    skip: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    format: Format = "text",
) -> int:
    """Judge a trace: every rule, who broke it, and the decision to blame.

    Exit status: 0 clean or numeric drift, 1 contaminated, violated or unexplained,
    4 incomplete or unstable.

    For example:

        kvrewind check leak.kvtrace

        kvrewind check leak.kvtrace --format json

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    only
        Only this rule (may be given more than once).
    skip
        All rules but this one.
    format
        text, or json: one JSON value and nothing else.
    """
    with TraceReader(trace) as reader:
        found = check_events(read_all(reader), problems=reader.problems)
        report = narrowed(found, only, skip)
        if format == "json":
            print_json(report.to_json())
        else:
            console = out()
            console.print(render(report, reader, console.width))
    return report.exit_status
