"""What a trace is of and what is in it, in one pass: all that `kvrewind info` says but memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..recorder.events import Envelope, RunEnded, RunStarted, SpanDropped
from .check import Inspection
from .run_tally import RunTally
from .verdict import Report


@dataclass(frozen=True, slots=True)
class Dropped:
    """Events that are not in the trace."""

    position: str
    """Where the trace goes on."""
    first_seq: int
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """What the checks say of it."""

    report: Report

    def plain(self) -> dict[str, Any]:
        report = self.report
        return {
            "verdict": report.verdict,
            "findings": len(report.findings),
            "by_check": dict(Counter(finding.check for finding in report.findings)),
            "roots": [
                {
                    "check": root.check,
                    "class": root.fault_class,
                    "position": root.position,
                    "culprit_seq": root.culprit_seq,
                    "victim": root.victim,
                    "source": root.source,
                    "explanation": root.explanation,
                }
                for root in report.roots
            ],
            "missing": list(report.missing),
        }


class Summary:
    """`see` every event in order. With `check`, each is judged too."""

    def __init__(self, *, check: bool) -> None:
        self.kinds: Counter[str] = Counter()
        self.tally = RunTally()
        self.dropped: list[Dropped] = []
        self.ended: str | None = None
        """Why the run ended, if the trace says so."""
        self.seconds = 0.0
        self.ranks: set[int] = set()
        self._inspection = Inspection() if check else None

    def see(self, envelope: Envelope) -> None:
        self.kinds[envelope.kind] += 1
        self.tally.see(envelope)
        self.seconds = max(self.seconds, envelope.t_ns * 1e-9)
        self.ranks.add(envelope.rank)
        match envelope.event:
            case SpanDropped(first_seq=first, count=count, why=why):
                self.dropped.append(Dropped(envelope.position, first, count, why))
            case RunEnded(reason=reason):
                self.ended = reason
            case _:
                pass
        if self._inspection is not None:
            self._inspection.see(envelope)

    @property
    def run(self) -> RunStarted | None:
        return self.tally.header

    def checked(self, problems: list[str]) -> CheckSummary | None:
        """None where nothing was checked. `problems`: what the reader found."""
        if self._inspection is None:
            return None
        return CheckSummary(self._inspection.report(problems))
