"""The first line: which trace, how it stands, where we are."""

from __future__ import annotations

from ...recorder.events import RunStarted
from ...replay.verdict import Report
from .findings import verdict_span
from .spans import Line, Span, counted, fitted, plain


def header_line(
    title: str,
    run: RunStarted | None,
    report: Report | None,
    problems: tuple[str, ...],
    position: str,
    width: int,
) -> Line:
    """Trace and model to the left, verdict and position to the right; the left is cut first."""
    right = (*_verdict(report, problems), Span("  at ", "dim"), Span(f"{position} ", "strong"))
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


def _verdict(report: Report | None, problems: tuple[str, ...]) -> Line:
    if report is None:
        return (Span(" checking… ", "dim.fill"),)
    found = Span(f" {counted(len(report.findings), 'finding')} ", "dim")
    badge = (verdict_span(report.verdict), *((found,) if report.findings else ()))
    if problems and report.verdict != "incomplete":
        return *badge, Span(" incomplete ", "warn.fill")
    return badge
