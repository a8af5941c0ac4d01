"""From a contaminated run to the one decision that allowed it.

    1. confirm   as recorded it fails; with reference answers everywhere it is clean
    2. toggles   one switch at a time, as in a laboratory notebook: hints, and they can mislead
    3. search    a shadow pass keeps the decisions d1..dM whose reference answer differs; binary
                 search for the shortest prefix d1..dk that fails when all others are answered by
                 reference; then dk alone must fail too, else its partner is searched

Every trial is run twice; two runs that disagree make the verdict `unstable`. Reference answers
change nothing where a decision was right, so an innocent decision is never blamed (avoidances,
such as not sharing at all, blamed an innocent one in 71 of 261 random leaking runs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..recorder.decision import DecisionId
from ..recorder.events import Envelope
from .carried_out import carrier_of
from .check import check
from .laboratory import Laboratory, Toggle, Unstable
from .policies import Shadow
from .reexecute import Reexecutor
from .toggles import toggles_for
from .verdict import Report, Verdict

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A decision without which the run is clean. `also`: others of its kind that differed."""

    id: DecisionId
    carrier: Envelope | None
    also: int

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "kind": self.id.kind,
            "position": self.carrier.position if self.carrier else None,
            "seq": self.carrier.seq if self.carrier else None,
            "also": self.also,
        }


@dataclass(frozen=True, slots=True)
class Bisection:
    """What was found, and what it cost.

    `trials` counts the pairs of equal runs that confirmed and searched, `runs` every run, the
    toggles' too; `differing` of `decisions` had another reference answer.
    """

    verdict: Verdict
    toggles: tuple[Toggle, ...]
    culprits: tuple[Culprit, ...]
    differing: int
    decisions: int
    trials: int
    runs: int
    agrees_with_provenance: bool | None
    remark: str | None

    @property
    def exit_status(self) -> int:
        if self.verdict in ("unstable", "incomplete"):
            return 4
        return 1 if self.culprits else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "toggles": [{"switch": t.switch, "verdict": t.verdict} for t in self.toggles],
            "decisions": [culprit.to_json() for culprit in self.culprits],
            "trials": self.trials,
            "runs": self.runs,
            "agrees_with_provenance": self.agrees_with_provenance,
        }


def bisect(
    envelopes: list[Envelope],
    reexecutor: Reexecutor,
    *,
    victim: str | None = None,
    progress: Progress = lambda _: None,
) -> Bisection:
    """Bisect a recorded run. `victim` narrows it to what that request read.

    A trace with nothing to blame gives a bisection without culprits and the verdict that fits.
    """
    report = check(envelopes)
    fails = failure_like(report, victim)
    laboratory = Laboratory(reexecutor, fails)
    if not fails(report):
        why = "no finding has this victim" if victim else "nothing to blame"
        return _result(laboratory, report.verdict, remark=f"{report.verdict}: {why}")
    progress("confirming")
    try:
        shadow = laboratory.shadow()
        if laboratory.with_recorded(frozenset()).fails:
            remark = "with reference answers everywhere it fails as well: no decision explains it"
            return _result(laboratory, "unexplained", shadow=shadow, remark=remark)
        toggles = []
        for switch, switches in toggles_for(reexecutor.recording.config, envelopes).items():
            progress(f"toggling {switch}")
            toggles.append(laboratory.toggle(switch, switches))
        found = _search(laboratory, shadow.differing, progress)
    except Unstable as unstable:
        return _result(laboratory, "unstable", remark=str(unstable))
    culprits = tuple(
        Culprit(id, carrier_of(id, envelopes), _others_of_kind(id, shadow.differing))
        for group in found
        for id in group.ids
    )
    return _result(
        laboratory,
        report.verdict,
        toggles=tuple(toggles),
        culprits=culprits,
        shadow=shadow,
        agrees=all(group.agrees for group in found),
    )


def failure_like(report: Report, victim: str | None) -> Callable[[Report], bool]:
    """What counts as the failure recurring: the same verdict, or a finding for this victim."""
    if victim is not None:
        return lambda other: any(f.victim == victim for f in other.findings)
    if report.verdict == "contaminated":
        return lambda other: other.verdict == "contaminated"
    return lambda other: other.verdict in ("contaminated", "violated")


@dataclass(frozen=True, slots=True)
class Found:
    """A smallest set of decisions that fails by itself.

    `agrees`: the provenance chains of the run in which it was searched blame each of them too.
    """

    ids: tuple[DecisionId, ...]
    agrees: bool


def _search(laboratory: Laboratory, differing: list[DecisionId], progress: Progress) -> list[Found]:
    """All culprits: one (or a set) at a time, then its kinds are answered by reference."""
    found: list[Found] = []
    rest = list(differing)
    while rest and (searched := laboratory.with_recorded(frozenset(rest))).fails:
        ids = _smallest_set(laboratory, rest, progress)
        found.append(Found(tuple(ids), all(str(id) in searched.blamed for id in ids)))
        kinds = {id.kind for id in ids}
        rest = [id for id in rest if id.kind not in kinds]
    return found


def _smallest_set(
    laboratory: Laboratory, differing: list[DecisionId], progress: Progress
) -> list[DecisionId]:
    """The last decision of the shortest failing prefix; with its partners if it isn't enough."""
    kept: list[DecisionId] = []
    while not (kept and laboratory.with_recorded(frozenset(kept)).fails):
        candidates = [id for id in differing if id not in kept]
        if not candidates:
            break
        progress(f"searching {len(candidates)} decisions")
        kept.append(_last_of_shortest_prefix(laboratory, candidates, kept))
    return sorted(kept, key=differing.index)


def _last_of_shortest_prefix(
    laboratory: Laboratory, candidates: list[DecisionId], kept: list[DecisionId]
) -> DecisionId:
    low, high = 0, len(candidates)  # a prefix of `low` is clean, one of `high` fails
    while high - low > 1:
        middle = (low + high) // 2
        if laboratory.with_recorded(frozenset((*kept, *candidates[:middle]))).fails:
            high = middle
        else:
            low = middle
    return candidates[high - 1]


def _others_of_kind(id: DecisionId, differing: list[DecisionId]) -> int:
    return sum(other.kind == id.kind for other in differing) - 1


def _result(
    laboratory: Laboratory,
    verdict: Verdict,
    *,
    toggles: tuple[Toggle, ...] = (),
    culprits: tuple[Culprit, ...] = (),
    shadow: Shadow | None = None,
    agrees: bool | None = None,
    remark: str | None = None,
) -> Bisection:
    return Bisection(
        verdict=verdict,
        toggles=toggles,
        culprits=culprits,
        differing=len(shadow.differing) if shadow else 0,
        decisions=shadow.decisions if shadow else 0,
        trials=laboratory.trials,
        runs=laboratory.runs,
        agrees_with_provenance=agrees,
        remark=remark,
    )
