"""Findings as they turn up: what each step adds to those of the steps before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .blame import CARRIED_OUT_BY_ROW, carry_cause, finding_of, likeness, wrong_decision
from .checks.base import Violation
from .findings import Finding
from .transitions.steps import STEPS_KEPT


@dataclass(frozen=True, slots=True)
class Sighting:
    """A finding when it is found. `culprit_position`: of the event to blame, None if none is known.

    `count`: how many of the same wrong decision there are by now, this one included. `is_revised`:
    it was told before, with another event to blame.
    """

    finding: Finding
    culprit_position: str | None
    count: int
    is_revised: bool = False


class _Blame(NamedTuple):
    """As what a violation was told."""

    check: str
    fault_class: str | None
    culprit_seq: int


class _Change(NamedTuple):
    run: list[Violation]
    before: _Blame | None


class Sightings:
    """Looks at the violations after each step, and at those of the last few steps again."""

    def __init__(self) -> None:
        self.by_check: Counter[str] = Counter()
        """How many findings there are."""
        self._told: dict[int, _Blame] = {}
        """Those that may still be revised, by their number."""
        self._settled = 0
        """How many of the first ones are too old for that."""
        self._runs: set[Hashable] = set()
        self._roots: set[Hashable] = set()
        """Wrong decisions that have a root, and events that are one."""
        self._count: Counter[Hashable] = Counter()

    def of_step(self, violations: Sequence[Violation], step: int) -> list[Sighting]:
        """What is new since the last call, roots first and then by culprit."""
        changed: dict[Hashable, _Change] = {}
        for number in range(self._settled, len(violations)):
            violation = violations[number]
            if violation.is_reported:
                self._look(number, violation, changed)
        self._settle(violations, step)
        ordered = sorted(changed.values(), key=lambda change: _order(change.run[0]))
        sightings = [self._sighting(change) for change in ordered]
        return sorted(sightings, key=lambda sighting: not sighting.finding.root)

    def _look(self, number: int, violation: Violation, changed: dict[Hashable, _Change]) -> None:
        carry_cause(violation)
        now = _Blame(violation.check, violation.fault_class, violation.culprit.seq)
        before = self._told.get(number)
        if now == before:
            return
        self._told[number] = now
        run = likeness(violation)
        if run in changed:
            changed[run].run.append(violation)
            changed[run].run.sort(key=_order)
        elif run not in self._runs:
            self._runs.add(run)
            changed[run] = _Change([violation], before)

    def _settle(self, violations: Sequence[Violation], step: int) -> None:
        while (
            self._settled < len(violations) and violations[self._settled].step < step - STEPS_KEPT
        ):
            self._told.pop(self._settled, None)
            self._settled += 1

    def _sighting(self, change: _Change) -> Sighting:
        first = change.run[0]
        if change.before is not None:
            self.by_check[change.before.check] -= 1
        else:
            self._count[wrong_decision(first)] += 1
        self.by_check[first.check] += 1
        finding = finding_of(change.run, self._is_root(first))
        culprit = f"{first.culprit.step}:{first.culprit.seq}"
        count = max(self._count[wrong_decision(first)], 1)
        return Sighting(finding, culprit, count, change.before is not None)

    def _is_root(self, first: Violation) -> bool:
        if first.cause is not None and first.cause.is_reported:
            return False
        by_row = first.culprit.kind in CARRIED_OUT_BY_ROW
        subjects = {wrong_decision(first), (first.culprit.seq, first.check if by_row else None)}
        is_root = not subjects & self._roots
        self._roots |= subjects
        return is_root


def _order(violation: Violation) -> tuple[int, int]:
    return violation.culprit.seq, violation.seq
