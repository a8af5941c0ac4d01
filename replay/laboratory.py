"""Trials: runs of a recording under other switches or decisions, each made twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.decisions import Policy
from ..engine.faults.registry import policy_of
from ..recorder.decision import DecisionId
from ..recorder.events import Envelope
from .check import check
from .policies import AsRecordedFor, Shadow
from .reexecute import Reexecutor
from .verdict import Report

DID_NOT_FINISH = "did-not-finish"


@dataclass(frozen=True, slots=True)
class Toggle:
    """One line of the notebook: a switch, and the verdict of the run under it."""

    switch: str
    verdict: str


class Unstable(Exception):
    """Two runs of one trial disagree."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run showed. Two runs of a trial must show the same."""

    fails: bool
    verdict: str
    blamed: frozenset[str]
    """The decisions that its provenance chains blame."""


@dataclass(slots=True)
class Laboratory:
    """Runs trials, each twice, and remembers the ones already made."""

    reexecutor: Reexecutor
    fails: Callable[[Report], bool]
    trials: int = 0
    runs: int = 0
    _known: dict[frozenset[DecisionId], Outcome] = field(default_factory=dict)

    def with_recorded(self, ids: frozenset[DecisionId]) -> Outcome:
        """The run with these decisions as recorded and all others by reference."""
        if ids not in self._known:
            recorded = policy_of(self.reexecutor.recording.config)
            self._known[ids] = self._pair(lambda: AsRecordedFor(recorded, ids))
        return self._known[ids]

    def shadow(self) -> Shadow:
        """The run as recorded, with both answers to every question. Raises `Unstable` when it
        doesn't fail."""
        shadow = Shadow(policy_of(self.reexecutor.recording.config))
        again = Shadow(policy_of(self.reexecutor.recording.config))
        passes = iter((shadow, again))
        outcome = self._pair(lambda: next(passes))
        if not outcome.fails or shadow.differing != again.differing:
            raise Unstable("the run as recorded doesn't fail again")
        self._known[frozenset(shadow.differing)] = outcome
        return shadow

    def toggle(self, switch: str, switches: Mapping[str, object]) -> Toggle:
        """The run with these fields of its configuration replaced."""
        first, second = (self._run(switches=switches) for _ in range(2))
        return Toggle(switch, first.verdict if first == second else "unstable")

    def _pair(self, policy: Callable[[], Policy]) -> Outcome:
        first, second = (self._run(policy=policy()) for _ in range(2))
        self.trials += 1
        if first != second:
            raise Unstable("two equal runs of a trial disagree")
        return first

    def _run(self, **how: Any) -> Outcome:
        """A run that doesn't finish is judged as far as it went."""
        self.runs += 1
        rerun = self.reexecutor.run(**how)
        report = check(rerun.envelopes)
        return Outcome(
            fails=self.fails(report),
            verdict=report.verdict if rerun.finished else DID_NOT_FINISH,
            blamed=blamed_decisions(report, rerun.envelopes),
        )


def blamed_decisions(report: Report, envelopes: Sequence[Envelope]) -> frozenset[str]:
    """The decisions behind a report's findings: those that its culprits, all events of a run of
    like ones included, carry out."""
    by_seq = {envelope.seq: envelope.event for envelope in envelopes}
    carried = (by_seq[seq].decision for f in report.findings for seq in f.culprits)
    named = (finding.decision for finding in report.findings)
    return frozenset(id for id in (*carried, *named) if id is not None)
