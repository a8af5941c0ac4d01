"""Judges the events of one rank: the engine of one process, with blocks of its own.

Each event is shown to the rules, folded, and shown again; when a step is dispatched, its rows are
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..recorder.events import (
    Envelope,
    Event,
    InputsBuilt,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepDispatched,
)
from .blame import settle
from .checks import CHECKS
from .checks.base import Rule, Violation
from .checks.case import Case
from .checks.contents import read_row
from .checks.mask_faults import faults_of
from .checks.rows import (
    Row,
    StepRows,
    active_builds,
    latest_masks,
    latest_rows,
    length_fault,
    rows_of,
)
from .checks.tables import judge_table
from .checks.taken_up import take_up
from .completeness import NO_END, Completeness, Seqs
from .findings import Finding
from .passphrases import PassphraseWatch
from .reducer import apply
from .snapshot import compacted
from .state import Build, StepState
from .transitions.steps import STEPS_KEPT
from .verdict import Report, verdict_of

Hook = Callable[[Envelope, Case], None]
Hooks = dict[type[Event], tuple[Hook, ...]]


class RankInspection:
    """A check under way: feed it the rank's events in order, ask for the report at any time.

    `seqs` is shared by the ranks of a trace, which count their events together.
    """

    def __init__(self, seqs: Seqs) -> None:
        self._rules: tuple[Rule, ...] = tuple(rule() for rule in CHECKS)
        self._case = Case()
        self._completeness = Completeness(seqs)
        self._passphrases = PassphraseWatch()
        self._built_rows: dict[int, dict[int, list[Row]]] = {}
        """step -> seq of a build -> its rows, until the step is dispatched."""
        self._before = _hooks(self._rules, "before")
        self._after = _hooks(self._rules, "after")

    def see(self, envelope: Envelope) -> None:
        case, kind = self._case, type(envelope.event)
        self._completeness.see(envelope)
        self._passphrases.see(envelope)
        self._dispatch_unannounced(envelope)
        case.look_ahead(envelope)
        for hook in self._before.get(kind, ()):
            hook(envelope, case)
        apply(case.state, envelope)
        case.follow(envelope)
        for hook in self._after.get(kind, ()):
            hook(envelope, case)
        if isinstance(envelope.event, SpanDropped) and case.state.is_restored:
            self._take_up(envelope)
        if isinstance(envelope.event, InputsBuilt):
            self._built(envelope, envelope.event)
        elif isinstance(envelope.event, StepDispatched):
            self._dispatched(envelope.step, envelope.seq)

    @property
    def violations(self) -> Sequence[Violation]:
        """What broke so far, in the order in which it was found; each may still be revised by the
        next few steps."""
        return self._case.violations

    @property
    def passphrases(self) -> Sequence[Finding]:
        """Passphrases of others that a request has said so far."""
        return self._passphrases.findings

    def findings(self) -> tuple[Finding, ...]:
        """As they stand now. What a request says is one only where no leak accounts for it."""
        spoken = () if self._shows_foreign_data else self._passphrases.findings
        return (*settle(self._case.violations), *spoken)

    @property
    def _shows_foreign_data(self) -> bool:
        return any(violation.shows_foreign_data for violation in self._case.violations)

    @property
    def overwritten(self) -> int:
        """How many writes are remembered that no slot holds any more."""
        state = self._case.state
        return len(state.log) - sum(len(pool.slots) for pool in state.pools.values())

    def forget(self) -> None:
        """Let go of what can't matter any more: of a run that goes on for days only what is alive
        is held. Costs what the state is large; the verdict stays the same."""
        case = self._case
        state = compacted(case.state)
        case.forget(state)
        for rule in self._rules:
            rule.forget(case)
        self._completeness.forget(state.requests, before=case.completed_through - STEPS_KEPT)

    def report(self, problems: Sequence[str] = ()) -> Report:
        """The verdict so far. A damaged file has said already that its end is missing."""
        for rule in self._rules:
            rule.end(self._case)
        findings = self.findings()
        own = self._completeness.missing()
        missing = (*problems, *(m for m in own if not (problems and m == NO_END)))
        return Report(
            verdict_of(
                findings,
                read_foreign_data=self._shows_foreign_data,
                missing=missing,
            ),
            findings,
            missing,
        )

    def _take_up(self, mark: Envelope) -> None:
        """A ring begins: what its state shows is judged, the reads under way are not."""
        case = self._case
        take_up(case, mark)
        for rule in self._rules:
            rule.take_up(mark, case)
        self._completeness.take_up(case.state)
        for number, step in sorted(case.state.steps.items()):
            if step.completed_seq is not None or not step.builds:
                continue
            for build in step.builds:
                self._built(
                    Envelope(build.seq, number, mark.t_ns, mark.rank, build.event), build.event
                )
            if step.dispatched_seq is not None:
                rows = self._rows_of_step(number, step, step.dispatched_seq)
                case.reopen(rows, is_written=step.written_seq is not None)

    def _built(self, envelope: Envelope, event: InputsBuilt) -> None:
        """Tables are judged now, while what the request holds is what the builder saw."""
        step = self._case.state.steps.get(envelope.step, StepState())
        rows = rows_of(Build(envelope.seq, event), envelope.step, step)
        for row in rows:
            row.bad_entries = judge_table(self._case, row)
        self._built_rows.setdefault(envelope.step, {})[envelope.seq] = rows

    def _dispatch_unannounced(self, envelope: Envelope) -> None:
        """An engine that doesn't log its dispatches reads, at the latest, before it writes."""
        event = envelope.event
        is_of_step = isinstance(event, StepCompleted) or (
            isinstance(event, SlotsWritten) and event.write not in ("copy", "transfer")
        )
        step = self._case.state.steps.get(envelope.step)
        if (
            is_of_step
            and step is not None
            and step.builds
            and step.dispatched_seq is None
            and self._case.step_rows(envelope.step) is None
        ):
            self._dispatched(envelope.step, step.builds[-1].seq)

    def _dispatched(self, number: int, seq: int) -> None:
        case = self._case
        step = case.state.steps.get(number)
        if step is None or not step.builds or case.step_rows(number) is not None:
            return
        dispatched = self._rows_of_step(number, step, seq)
        case.open(dispatched)
        for row in dispatched.live():
            read_row(case, row)
        dispatched.mask_faults = faults_of(case, dispatched)
        for rule in self._rules:
            rule.read(dispatched, case)

    def _rows_of_step(self, number: int, step: StepState, seq: int) -> StepRows:
        builds = active_builds(step.builds)
        built = self._built_rows.pop(number, {})
        for build in builds:
            if build.seq < (step.scheduled_seq or 0):  # scheduled after it was built
                built[build.seq] = rows_of(build, number, step)
        rows = latest_rows([row for build in builds for row in built.get(build.seq, ())])
        scheduled = frozenset(
            name
            for event in (step.scheduled,)
            if event is not None
            for name, count in zip(event.requests, event.scheduled, strict=False)
            if count > 0
        )
        dispatched = StepRows(number, seq, rows, latest_masks(step.masks, builds), scheduled)
        for row in dispatched.live():
            self._prepare(dispatched, row)
        return dispatched

    def _prepare(self, step: StepRows, row: Row) -> None:
        case, request = self._case, str(row.request)
        known = case.state.requests.get(request)
        row.ordinal = known.preemptions if known else 0
        if row.true_len not in (None, row.seq_len):
            held = case.held_end(row.group, request)
            size = case.state.pool(row.group).block_size
            row.length_fault = length_fault(row, step.beside(row), held, size)


def _hooks(rules: tuple[Rule, ...], name: str) -> Hooks:
    hooks: dict[type[Event], list[Hook]] = {}
    for rule in rules:
        for kind in getattr(rule, f"{name}_kinds"):
            hooks.setdefault(kind, []).append(getattr(rule, name))
    return {kind: tuple(found) for kind, found in hooks.items()}
