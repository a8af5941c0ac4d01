"""The first line: which trace, how it stands, where we are."""

from __future__ import annotations

from typing import Literal

from ...recorder.events import RunStarted
from ...replay.verdict import Report
from .findings import verdict_span
from .spans import Line, Span, counted, fitted, plain

Standing = Literal["ended", "live", "followed"]
"""How the trace stands: nothing is added any more; it is being written; and followed."""


def header_line(
    title: str,
    run: RunStarted | None,
    report: Report | None,
    problems: tuple[str, ...],
    position: str,
    width: int,
    standing: Standing = "ended",
) -> Line:
    """Trace and model to the left, verdict and position to the right; the left is cut first."""
    verdict = _verdict(report, problems) if standing == "ended" else _so_far(report, standing)
    right = (*verdict, Span("  at ", "dim"), Span(f"{position} ", "strong"))
    room = max(width - len(plain(right)) - 1, 0)
    left, taken = fitted(_trace(title, run, problems), room)
    gap = " " * max(room + 1 - taken, 1)
    return *left, Span(gap), *right


def _trace(title: str, run: RunStarted | None, problems: tuple[str, ...]) -> Line:
    name = (Span(" kvrewind ", "dim"), Span(title, "strong"))
    if run is None:
        return *name, Span("  no RunStarted in this trace", "warn")
    if problems:
        return *name, Span(f"  {problems[0]}", "warn")
    switches = f"  {run.model} · {run.dtype} · {run.device}"
    return *name, Span(switches, "dim"), Span(_off(run), "dim")


def _off(run: RunStarted) -> str:
    off = [
        said
        for switch, said in (
            ("prefix_cache", "prefix cache off"),
            ("continuous_batching", "continuous batching off"),
        )
        if run.config.get(switch) is False
    ]
    return "".join(f" · {said}" for said in off)


def _so_far(report: Report | None, standing: Standing) -> Line:
    """Of a run that goes on only findings are final."""
    how = " live, following " if standing == "followed" else " live, F to follow "
    badge = Span(how, "good.fill" if standing == "followed" else "dim.fill")
    if report is None or not report.findings:
        return badge, Span(" no finding so far ", "dim")
    found = f" {counted(len(report.findings), 'finding')} so far "
    return badge, Span(" "), verdict_span(report.verdict), Span(found, "dim")


def _verdict(report: Report | None, problems: tuple[str, ...]) -> Line:
    if report is None:
        return (Span(" checking… ", "dim.fill"),)
    found = Span(f" {counted(len(report.findings), 'finding')} ", "dim")
    badge = (verdict_span(report.verdict), *((found,) if report.findings else ()))
    if problems and report.verdict != "incomplete":
        return *badge, Span(" incomplete ", "warn.fill")
    return badge
