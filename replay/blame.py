"""From violations to findings: which is the root, and who is to blame.

An **incident** is one wrong decision with all that follows from it. While a trace is judged, each
rule files its violation under what broke (a block's generation, a table entry, a share, a row, a
mask), and a later rule that meets the same thing broken finds the violation there and stays
silent: so consequences are not reported again. `foreign-read` is the exception: it is always
reported, with the class and the culprit of the violation that it found.

Afterwards:

1. Violations of one kind by one request in one step are a *run of like events* (an abort that
   frees ten blocks): one finding, named by the event that came first.
2. The first finding of each wrong decision is the *root*, one root an event (of events that have
   many rows, one an event and rule). The same wrong decision made again, later or for another
   request, is a finding of its own and no root. Two wrong decisions are the same when rule, class,
   variant (the way in which it was wrong) and kind of event are.
3. A foreign read is a root only when nothing accounts for it. With an `identity` finding at a
   `BlockShared` and a foreign read through that share, the incident has two findings: the identity
   finding, root, and the foreign read, which carries F01 and the share as its culprit. Where the
   rule that would report the cause is not among the checks, the foreign read still carries its
   class and culprit, and is the root itself.
4. Findings are sorted by culprit; of one culprit, the root comes first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from .checks.base import Violation
from .findings import Finding

CARRIED_OUT_BY_ROW = ("InputsBuilt", "MaskBuilt", "SlotsWritten", "TokensSampled")
"""Events that carry out many decisions, one a row or so: different rules, different decisions."""


def settle(violations: Iterable[Violation]) -> tuple[Finding, ...]:
    """Findings in the order of the contract."""
    reported = [v for v in violations if v.is_reported]
    for violation in reported:
        carry_cause(violation)
    runs = _runs(reported)
    ordered = sorted(runs, key=lambda run: (_order(run[0]), run[0].seq))
    roots = _roots(ordered)
    findings = [finding_of(run, id(run[0]) in roots) for run in ordered]
    return by_culprit(findings)


def by_culprit(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by culprit, and of one culprit the root first."""
    return tuple(sorted(findings, key=lambda f: (_last_if_none(f.culprit_seq), not f.root, f.seq)))


def carry_cause(violation: Violation) -> None:
    """Only now: what a cause is blamed on may have been settled after the read."""
    if violation.cause is not None:
        violation.fault_class = violation.cause.fault_class
        violation.culprit = violation.cause.culprit


def _runs(violations: Iterable[Violation]) -> list[list[Violation]]:
    """Like events together, the first of them in front."""
    runs: dict[Hashable, list[Violation]] = {}
    for violation in violations:
        runs.setdefault(likeness(violation), []).append(violation)
    for run in runs.values():
        run.sort(key=_order)
    return list(runs.values())


def likeness(violation: Violation) -> Hashable:
    """Equal for the violations of one run of like events."""
    culprit = violation.culprit
    if violation.check == "foreign-read":
        cause = violation.cause
        root = likeness(cause) if cause is not None else culprit.seq
        return "foreign-read", violation.victim, violation.source, violation.step, root
    who = culprit.request if culprit.kind.startswith(("Block", "Request")) else violation.victim
    return (
        violation.check, violation.fault_class, violation.variant, culprit.kind, culprit.step, who,
        culprit.seq if culprit.kind == "InputsBuilt" else None,
    )  # fmt: skip


def _order(violation: Violation) -> int:
    return violation.culprit.seq


def _roots(ordered: list[list[Violation]]) -> set[int]:
    """Ids of the violations that are first of their wrong decision."""
    seen: set[Hashable] = set()
    roots: set[int] = set()
    for run in ordered:
        first = run[0]
        if first.cause is not None and first.cause.is_reported:
            continue
        decision = wrong_decision(first)
        event = first.culprit.seq, first.check if first.culprit.kind in CARRIED_OUT_BY_ROW else None
        if decision not in seen and event not in seen:
            roots.add(id(first))
        seen |= {decision, event}
    return roots


def wrong_decision(violation: Violation) -> Hashable:
    """Equal for violations that are the same wrong decision, made once or again and again."""
    return (
        violation.check,
        violation.fault_class,
        violation.variant,
        violation.culprit.kind,
    )


def finding_of(run: list[Violation], is_root: bool) -> Finding:
    """What a run of like events is told as; the one that came first is in front."""
    first = run[0]
    is_cut_off = first.culprit.kind == "SpanDropped"
    culprits = [] if is_cut_off else sorted({v.culprit.seq for v in run})
    affected = sorted({name for v in run for name in v.also_affected})
    position = min(run, key=lambda v: v.seq)
    return Finding(
        check=first.check,
        fault_class=first.fault_class,
        root=is_root,
        position=f"{position.step}:{position.seq}",
        seq=position.seq,
        culprit_seq=None if is_cut_off else first.culprit.seq,
        decision=first.culprit.decision,
        block=first.block,
        slot=first.slot,
        row=first.row,
        query=first.query,
        key=first.key,
        expected=first.expected,
        actual=first.actual,
        victim=first.victim,
        source=first.source,
        also_affected=tuple(affected),
        explanation=first.explanation + (_CUT_OFF if is_cut_off else ""),
        culprits=tuple(culprits),
    )


_CUT_OFF = "; what allowed it had left the ring before it was frozen: record with a longer --ring"


def _last_if_none(seq: int | None) -> tuple[bool, int]:
    return seq is None, seq or 0
