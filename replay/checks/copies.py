"""Copies on write, for `exclusive-write`: late, wrong, incomplete or missing."""

from __future__ import annotations

from ...recorder.events import BlockCopied, Envelope
from ..state import Holder
from .base import Culprit, Violation, culprit_of
from .case import Case
from .causes import copy_subject, handed_subject, scrubbed_subject
from .contents import SlotProblem
from .context import Mismatch
from .rows import Row, StepRows

Name = tuple[int, int, int]
"""(group, block, generation) of a destination."""


class Copies:
    def __init__(self) -> None:
        self._made: dict[Name, Culprit] = {}
        self._awaited: dict[Name, Violation] = {}
        """Destinations that were read before any copy: late or missing is not settled yet."""

    def copied(self, envelope: Envelope, event: BlockCopied, case: Case) -> None:
        """Each copied slot holds what the destination's request computed up to now."""
        group = event.group or 0
        pool = case.state.pool(group)
        block = pool.block(event.destination)
        name = (group, event.destination, block.generation)
        holder = block.holders[0] if block.holders else None
        culprit = culprit_of(envelope, holder.request if holder else None)
        self._made.setdefault(name, culprit)
        source = group, event.source, pool.block(event.source).generation
        known = case.cause(
            *(of(*source) for of in (handed_subject, scrubbed_subject, copy_subject))
        )
        if known is not None:  # what is copied is wrong already
            case.causes.setdefault(copy_subject(*name), known)
            return
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            awaited.culprit, awaited.variant = culprit, "copied-late"
            return
        if holder is not None and self._was_read(case, envelope, event, name, holder, culprit):
            return
        known = case.state.requests.get(holder.request) if holder else None
        if holder is None or holder.table_index is None or known is None:
            return
        for offset in range(min(max(event.slots, 0), pool.block_size)):
            slot = event.destination * pool.block_size + offset
            position = holder.table_index * pool.block_size + offset
            write = case.state.writer(group, slot)
            if position >= known.computed or write is None or write.generation is None:
                continue  # the request will write that slot itself
            mismatch = case.context.mismatch(case.state, write, holder.request, position, None)
            if mismatch is not None:
                self._report_wrong(
                    case, envelope.seq, envelope.step, culprit, name, slot, mismatch,
                    holder.request, write.request,
                )  # fmt: skip
                return

    def _was_read(
        self,
        case: Case,
        envelope: Envelope,
        event: BlockCopied,
        name: Name,
        holder: Holder,
        culprit: Culprit,
    ) -> bool:
        """An unwritten read of what the copy now fills turns out to be a late copy."""
        found = case.cause(("unwritten", name[0], holder.request, holder.table_index, *name[1:]))
        size = case.state.pool(event.group).block_size
        if found is None or found.check != "unwritten-read" or found.slot is None:
            return False
        if found.slot % size >= event.slots:
            return False
        found.check, found.fault_class, found.variant = "exclusive-write", "F19", "copied-late"
        found.culprit = culprit
        found.explanation = (
            f"block {event.destination} was read by {holder.request} at event {found.seq}, "
            f"and copied at event {envelope.seq}"
        )
        return True

    def read(self, case: Case, step: StepRows, row: Row, problem: SlotProblem) -> None:
        """A row reads a slot that a copy should have filled, or filled wrongly."""
        name = (row.group, problem.block, problem.generation)
        hold, write = problem.hold, problem.write
        if hold is None or case.cause(handed_subject(*name), copy_subject(*name)) is not None:
            return
        if hold.key is not None:
            return  # right or wrong for whom it was copied: this row has it by a share
        if problem.mismatch is not None and write is not None and write.kind == "copy":
            self._report_wrong(
                case, row.build.seq, step.step, self._made.get(name) or hold.culprit, name,
                problem.slot, problem.mismatch, str(row.request), write.request,
            )  # fmt: skip
        elif problem.kind == "unwritten" and (hold.replaced or name in self._made):
            self._report_unfilled(case, step, row, problem, name, hold.culprit)

    def _report_unfilled(
        self,
        case: Case,
        step: StepRows,
        row: Row,
        problem: SlotProblem,
        name: Name,
        allocated: Culprit,
    ) -> None:
        made, request = self._made.get(name), str(row.request)
        violation = _violation(
            "copied-partly" if made else "not-copied", made or allocated, row.build.seq, step.step,
            f"{request} reads slot {problem.slot} of block {problem.block}, "
            "to which it was not copied",
            block=problem.block, slot=problem.slot, row=row.number, victim=request,
            source=problem.write.request if problem.write else None,
        )  # fmt: skip
        if case.report(violation, copy_subject(*name)) is violation and made is None:
            self._awaited[name] = violation

    def _report_wrong(
        self,
        case: Case,
        seq: int,
        step: int,
        culprit: Culprit,
        name: Name,
        slot: int,
        mismatch: Mismatch,
        victim: str,
        source: str | None,
    ) -> None:
        violation = _violation(
            "copied-wrongly", culprit, seq, step,
            f"slot {slot} was copied for {victim}, but its {mismatch.reason} differ: "
            f"expected {mismatch.expected!r}, found {mismatch.actual!r}",
            block=name[1], slot=slot, victim=victim, source=source,
            expected=mismatch.expected, actual=mismatch.actual,
        )  # fmt: skip
        case.report(violation, copy_subject(*name))


def _violation(
    variant: str, culprit: Culprit, seq: int, step: int, explanation: str, **fields: object
) -> Violation:
    return Violation(
        check="exclusive-write",
        fault_class="F19",
        variant=variant,
        culprit=culprit,
        seq=seq,
        step=step,
        explanation=explanation,
        **fields,  # pyright: ignore[reportArgumentType]
    )
