"""`dangling-table` (F07): a row's table lists what its request holds, and ends where it ends.

A table that outlives its pages sends reads and writes into blocks that others were handed
meanwhile (mini-sglang 142; vLLM 42273).
"""

from __future__ import annotations

from ...recorder.events import BlockShared, Envelope
from .base import Rule, Violation
from .case import Case
from .causes import block_subject, handed_subject, listed_subject, taken_subject
from .rows import Row, StepRows
from .tables import BadEntry


class DanglingTable(Rule):
    slug = "dangling-table"
    fault_class = "F07"

    def read(self, step: StepRows, case: Case) -> None:
        for row in step.live():
            if not case.is_judged(row.request):
                continue
            explained = case.cause(("row", row.group, row.request, step.step))
            if row.length_fault == "dangling-table" and explained is None:
                self._report_length(case, step, row)
            for bad in row.bad_entries:
                self._judge(case, step, row, bad)

    def _judge(self, case: Case, step: StepRows, row: Row, bad: BadEntry) -> None:
        request = str(row.request)
        entry = entry_subject(row, bad)
        known = case.cause(entry, ("row", row.group, request, step.step))
        if known is None and bad.kind == "stale" and bad.block is not None:
            generation = case.state.pool(row.group).block(bad.block).generation
            known = case.cause(block_subject(row.group, bad.block, generation))
        if known is None and bad.block is not None:
            taken = case.cause(taken_subject(row.group, request, bad.block))
            is_later = taken is not None and (
                bad.release is None or taken.culprit.seq > bad.release.seq
            )
            known = taken if is_later else None
        if known is None and bad.block is None:
            known = _cause_of_hole(case, row, bad)
        listed = listed_subject(row.group, request, bad.block) if bad.block is not None else entry
        if known is not None:
            case.causes.setdefault(entry, known)
            case.causes.setdefault(listed, known)
            return
        hold = case.hold(row.group, request, bad.at)
        case.report(
            Violation(
                check=self.slug,
                fault_class=self.fault_class,
                variant="kept" if bad.release else "listed",
                culprit=bad.release or row.culprit(),
                seq=row.build.seq,
                step=step.step,
                explanation=_explain(request, bad),
                block=bad.block,
                row=row.number,
                expected=hold.block if hold else None,
                actual=bad.block,
                victim=request,
                source=_present_holder(case, row.group, bad.block),
            ),
            entry,
        )
        case.causes.setdefault(listed, case.causes[entry])

    def _report_length(self, case: Case, step: StepRows, row: Row) -> None:
        size = case.state.pool(row.group).block_size
        index = (row.seq_len - 1) // size
        block = row.table[index] if index < len(row.table) and row.table[index] >= 0 else None
        case.report(
            Violation(
                check=self.slug,
                fault_class=self.fault_class,
                variant="ends-wrongly",
                culprit=row.culprit(),
                seq=row.build.seq,
                step=step.step,
                explanation=(
                    f"{row.request} is given a length of {row.seq_len}, past the blocks it holds; "
                    f"it has {row.true_len} tokens"
                ),
                block=block,
                row=row.number,
                expected=row.true_len,
                actual=row.seq_len,
                victim=row.request,
            ),
            ("entry", row.group, row.request, index, block),
            ("length", row.group, row.request, step.step),
        )
        for bad in row.bad_entries:
            if bad.kind == "past-end":
                case.causes.setdefault(entry_subject(row, bad), case.violations[-1])


def forked_from_kept(
    envelope: Envelope, event: BlockShared, case: Case, parent: str | None
) -> Violation | None:
    """A fork that takes over what its parent's table lists and the parent gave up."""
    group = event.group or 0
    if event.key is not None or parent is None:
        return None
    hold = case.hold(group, parent, event.index)
    release = case.kept_release(group, parent, event.index, event.block)
    if release is None or (hold is not None and hold.block == event.block):
        return None
    return Violation(
        check=DanglingTable.slug,
        fault_class=DanglingTable.fault_class,
        variant="kept",
        culprit=release,
        seq=envelope.seq,
        step=envelope.step,
        explanation=(
            f"{parent} released block {event.block} at index {event.index}, "
            f"and {event.request} forked it from its table"
        ),
        block=event.block,
        expected=hold.block if hold else None,
        actual=event.block,
        victim=event.request,
        source=parent,
    )


def entry_subject(row: Row, bad: BadEntry) -> tuple[object, ...]:
    return ("entry", row.group, row.request, bad.at, bad.block)


def _cause_of_hole(case: Case, row: Row, bad: BadEntry) -> Violation | None:
    """What accounts for a hole: the block that stood there was handed out while it was held."""
    pool = case.state.pool(row.group)
    for group, request, index, block in case.releases:
        if (group, request, index) == (row.group, row.request, bad.at):
            known = case.cause(handed_subject(group, block, pool.block(block).generation))
            if known is not None:
                return known
    return None


def _present_holder(case: Case, group: int, block: int | None) -> str | None:
    """Whose block it is now."""
    if block is None:
        return None
    holders = case.state.pool(group).block(block).holders
    return holders[0].request if holders else None


def _explain(request: str, bad: BadEntry) -> str:
    if bad.block is None:
        return f"the table of {request} has nothing at index {bad.at}, inside its length"
    if bad.release:
        return (
            f"{request} released block {bad.block} at index {bad.at}, and its table still lists it"
        )
    return (
        f"the table of {request} lists block {bad.block} at index {bad.at}, which it does not hold"
    )
