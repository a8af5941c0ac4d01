"""`check`: judge a trace by the rules of the contract.

One pass. What the trace doesn't tell is listed in `missing`: a trace in which nothing was found is
called clean only if it tells everything that the rules need. Each rank of a merged trace is judged
by itself, since its blocks are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..recorder.events import Envelope
from .blame import by_culprit
from .checks.base import Violation
from .completeness import Seqs
from .findings import Finding
from .inspection import RankInspection
from .verdict import Report, worst


def check(envelopes: Iterable[Envelope], problems: Sequence[str] = ()) -> Report:
    """The report on a trace. Never raises on decodable events, however broken the run.

    `problems`: what the reader already found missing or damaged.
    """
    inspection = Inspection()
    for envelope in envelopes:
        inspection.see(envelope)
    return inspection.report(problems)


class Inspection:
    """A check under way: feed it events in order, ask for the report at any time."""

    def __init__(self) -> None:
        self._seqs = Seqs()
        self._ranks: dict[int, RankInspection] = {}

    def see(self, envelope: Envelope) -> None:
        of_rank = self._ranks.get(envelope.rank)
        if of_rank is None:
            of_rank = self._ranks[envelope.rank] = RankInspection(self._seqs)
        of_rank.see(envelope)

    @property
    def violations(self) -> Sequence[Violation]:
        """What broke so far, in the order in which it was found, rank by rank; each may still be
        revised by the next few steps."""
        if len(self._ranks) == 1:
            return next(iter(self._ranks.values())).violations
        return [violation for _, part in self._parts() for violation in part.violations]

    @property
    def passphrases(self) -> Sequence[Finding]:
        """Passphrases of others that a request has said so far."""
        return self._of_all([(rank, part.passphrases) for rank, part in self._parts()])

    def findings(self) -> tuple[Finding, ...]:
        """As they stand now. What a request says is one only where no leak accounts for it."""
        return self._of_all([(rank, part.findings()) for rank, part in self._parts()])

    @property
    def overwritten(self) -> int:
        """How many writes are remembered that no slot holds any more."""
        return sum(part.overwritten for part in self._ranks.values())

    def forget(self) -> None:
        """Let go of what can't matter any more: of a run that goes on for days only what is alive
        is held. Costs what the state is large; the verdict stays the same."""
        for part in self._ranks.values():
            part.forget()

    def report(self, problems: Sequence[str] = ()) -> Report:
        """The verdict so far. A damaged file has said already that its end is missing."""
        if not self._ranks:
            self._ranks[0] = RankInspection(self._seqs)
        reports = [(rank, part.report(problems)) for rank, part in self._parts()]
        if len(reports) == 1:
            return reports[0][1]
        missing = [
            f"rank {rank}: {sentence}"
            for rank, report in reports
            for sentence in report.missing[len(problems) :]
        ]
        findings = self._of_all([(rank, report.findings) for rank, report in reports])
        return Report(
            worst(report.verdict for _, report in reports), findings, (*problems, *missing)
        )

    def _parts(self) -> list[tuple[int, RankInspection]]:
        return sorted(self._ranks.items())

    def _of_all(self, found: list[tuple[int, Sequence[Finding]]]) -> tuple[Finding, ...]:
        if len(found) == 1:
            return tuple(found[0][1])
        return by_culprit(
            replace(finding, explanation=f"rank {rank}: {finding.explanation}")
            for rank, findings in found
            for finding in findings
        )
