"""`unwritten-read` (F13): every slot that a row may read was written in the block's present
generation, for that group, and it reads as many keys as it has tokens.

What lies in a slot before that is what an earlier owner left (nano-vllm 213).
"""

from __future__ import annotations

from .address import misplaced_subject
from .base import Rule, Violation
from .case import Case, Subject
from .causes import copy_subject, handed_subject, scrubbed_subject
from .rows import Row, StepRows


class UnwrittenRead(Rule):
    slug = "unwritten-read"
    fault_class = "F13"

    def read(self, step: StepRows, case: Case) -> None:
        for row in step.live():
            if not case.is_judged(row.request):
                continue
            explained = case.cause(("row", row.group, row.request, step.step))
            if row.length_fault == "unwritten-read" and explained is None:
                self._report_length(case, step, row)
            self._judge_slots(case, step, row)

    def _judge_slots(self, case: Case, step: StepRows, row: Row) -> None:
        size = case.state.pool(row.group).block_size
        for problem in row.problems:
            if problem.kind != "unwritten" or problem.cause or problem.position is None:
                continue
            name = (row.group, problem.block, problem.generation)
            index = problem.position // size
            here = unwritten_subject(row, index, problem.block, problem.generation)
            explained = case.cause(
                ("row", row.group, row.request, step.step),
                ("length", row.group, row.request, step.step),
                ("entry", row.group, row.request, index, problem.block),
                ("share", row.group, row.request, index, problem.block, problem.generation),
                misplaced_subject(row.group, str(row.request), problem.position),
                handed_subject(*name),
                copy_subject(*name),
                scrubbed_subject(*name),
            )
            if explained is not None:
                case.causes.setdefault(here, explained)
                continue
            left = problem.write.request if problem.write else None
            case.report(
                Violation(
                    check=self.slug,
                    fault_class=self.fault_class,
                    variant="slot",
                    culprit=row.culprit(),
                    seq=row.build.seq,
                    step=step.step,
                    explanation=(
                        f"{row.request} reads slot {problem.slot} as its token {problem.position}, "
                        f"which was not written since block {problem.block} was handed out"
                    ),
                    block=problem.block,
                    slot=problem.slot,
                    row=row.number,
                    victim=row.request,
                    source=left if left != row.request else None,
                ),
                here,
            )

    def _report_length(self, case: Case, step: StepRows, row: Row) -> None:
        size = case.state.pool(row.group).block_size
        first = min(row.seq_len, row.true_len or 0)
        slot = row.slot_at(first, size)
        case.report(
            Violation(
                check=self.slug,
                fault_class=self.fault_class,
                variant="length",
                culprit=row.culprit(),
                seq=row.build.seq,
                step=step.step,
                explanation=(
                    f"{row.request} reads {row.seq_len} keys, it has {row.true_len} with this step"
                ),
                block=None if slot is None else slot // size,
                slot=slot,
                row=row.number,
                expected=row.true_len,
                actual=row.seq_len,
                victim=row.request,
                source=_left_there(case, row, slot),
            ),
            ("length", row.group, row.request, step.step),
        )


def unwritten_subject(row: Row, index: int, block: int, generation: int) -> Subject:
    return ("unwritten", row.group, row.request, index, block, generation)


def _left_there(case: Case, row: Row, slot: int | None) -> str | None:
    """Whose data the slot holds, if another's."""
    writes = case.contents(row.group, slot) if slot is not None else []
    left = writes[-1].request if writes else None
    return left if left != row.request else None
