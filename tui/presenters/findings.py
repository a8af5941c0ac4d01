"""Findings and verdicts as rows."""

from __future__ import annotations

from ...replay.findings import Finding
from .blame import CULPRIT, place_of
from .events import Names, block_span
from .spans import Line, Row, Span

VERDICT_ROLES = {
    "contaminated": "bad",
    "violated": "bad",
    "unexplained": "bad",
    "unstable": "warn",
    "incomplete": "warn",
    "numeric-drift": "warn",
    "clean": "good",
}


def verdict_span(verdict: str) -> Span:
    return Span(f" {verdict} ", VERDICT_ROLES.get(verdict, "warn") + ".fill")


def finding_row(finding: Finding, position: str, names: Names) -> Row:
    """`◆ F01 identity  5:85  r1←r0 b2  what happened`; `position` is that of the culprit."""
    line = (
        Span(f"{CULPRIT if finding.root else ' '} ", "bad"),
        Span(f"{finding.fault_class or '':<4}", "bad" if finding.root else "text"),
        Span(f"{finding.check:<16}", "strong" if finding.root else "text"),
        Span(f"{position:<9}", "place"),
        *parties(finding, names),
        Span("  "),
        Span(finding.explanation, "text" if finding.root else "dim"),
    )
    return Row(line, place_of(finding), finding.block, finding.victim)


def parties(finding: Finding, names: Names) -> Line:
    """`r1←r0 b2`: who read whose block."""
    if finding.victim is None:
        return ()
    spans: list[Span] = [names.owners.name(finding.victim)]
    if finding.source is not None:
        spans += [Span("←", "dim"), names.owners.name(finding.source)]
    if finding.block is not None:
        spans += [Span(" ", "dim"), block_span(finding.block)]
    return tuple(spans)
