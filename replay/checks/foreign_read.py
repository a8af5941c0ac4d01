"""`foreign-read`: a row reads a slot whose writer is another request (or a pad), and no share
proved by `identity` lets it.

This is the leak itself, and always a consequence: it carries the class and the culprit of what
made it possible, and is a root only where nothing else accounts for it. It is not transitive: who
later shares what the victim computed is listed as `also_affected`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...recorder.events import BlockCopied, BlockFreed, BlockShared, Envelope, SlotsWritten
from ..writes import Write
from .address import misplaced_subject
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Subject
from .causes import block_subject, cause_of_content
from .contents import SlotProblem, hold_of, judge_write
from .rows import Row, StepRows, visible_range
from .unwritten_read import unwritten_subject


class ForeignRead(Rule):
    slug = "foreign-read"
    fault_class = None
    after_kinds = (BlockFreed, BlockShared, BlockCopied, SlotsWritten)

    def __init__(self) -> None:
        self._tainted: dict[str, tuple[int, Violation]] = {}
        """Victim -> (step, finding) of its first foreign read."""

    def read(self, step: StepRows, case: Case) -> None:
        for row in step.rows:
            if row.request is None:
                culprit = Culprit(row.build.seq, row.step, "InputsBuilt", None, None)
                _remember_pads(case, culprit, row.group, row.slots)
        for row in step.live():
            for problem in row.problems:
                if problem.leaks_to(str(row.request)):
                    self._report(case, row, problem, row.build.seq, step.step)

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        match event:
            case BlockFreed():
                self._freed(envelope, event, case)
            case BlockShared():
                self._shared(event, case)
            case BlockCopied():
                self._written_into_flight(envelope, case, event.group or 0, _copied(event, case))
            case SlotsWritten():
                slots = [slot for slot in event.slots if slot >= 0]
                pads = (s for s, who in zip(event.slots, event.requests, strict=False) if not who)
                _remember_pads(case, culprit_of(envelope), event.group or 0, pads)
                self._written_into_flight(envelope, case, event.group or 0, slots)
            case _:
                pass

    def _report(self, case: Case, row: Row, problem: SlotProblem, seq: int, step: int) -> None:
        request, write = str(row.request), problem.write
        if write is None:
            return
        cause = cause_of(case, row, problem)
        source = write.request
        who = "a pad" if source is None else source
        violation = Violation(
            check=self.slug,
            fault_class=cause.fault_class if cause else None,
            variant="read",
            culprit=cause.culprit if cause else row.culprit(),
            seq=seq,
            step=step,
            explanation=(
                f"{request} reads slot {problem.slot}, last written by {who} as its token "
                f"{write.position} at event {write.seq}"
            ),
            block=problem.block,
            slot=problem.slot,
            row=row.number,
            query=problem.query,
            key=problem.key,
            victim=request,
            source=source,
            cause=cause,
            shows_foreign_data=True,
        )
        subject = ("foreign", row.group, request, problem.block, problem.generation, source)
        if case.report(violation, subject) is violation:
            self._tainted.setdefault(request, (step, violation))

    # Reads of what is written while the step is under way.

    def _written_into_flight(
        self, envelope: Envelope, case: Case, group: int, slots: list[int]
    ) -> None:
        """A write by another request into a row's read set, before the row's step completed.

        What the step's own or an earlier step's mapping announced was judged at dispatch.
        """
        if not case.open_steps:
            return
        mapped = case.step_rows(envelope.step)
        for opened in tuple(case.open_steps.values()):
            for slot in slots:
                is_announced = mapped is not None and (group, slot) in mapped.mapped
                if is_announced and envelope.step <= opened.rows.step:
                    continue
                write = case.state.writer(group, slot)
                if write is not None and write.seq == envelope.seq:
                    self._judge_flight(envelope, case, opened.rows, group, slot, write)

    def _judge_flight(
        self,
        envelope: Envelope,
        case: Case,
        step: StepRows,
        group: int,
        slot: int,
        write: Write,
    ) -> None:
        size = case.state.pool(group).block_size
        block = slot // size
        for row in step.live():
            known = case.state.requests.get(str(row.request))
            if row.group != group or block not in row.table or write.request == row.request:
                continue
            position = row.table.index(block) * size + slot % size
            if known is None or known.is_finished:
                continue
            if position not in visible_range(row, case.state, size):
                continue
            request = str(row.request)
            hold = hold_of(case, group, request, block, position, size)
            is_legal, mismatch = judge_write(case, group, request, slot, write, hold)
            if not is_legal:
                generation = case.state.pool(group).block(block).generation
                problem = SlotProblem(
                    "foreign", slot, position, block, generation, write, hold, mismatch
                )
                self._report(case, row, problem, envelope.seq, step.step)

    def _freed(self, envelope: Envelope, event: BlockFreed, case: Case) -> None:
        """A block freed under a step that uses it (F04) accounts for what follows in it."""
        group = event.group or 0
        for step in case.in_flight():
            for row in step.live():
                if row.group == group and event.block in row.table:
                    culprit = culprit_of(envelope, row.request)
                    self._remember_flight(case, envelope, culprit, group, event.block)
                    return

    def _remember_flight(
        self, case: Case, envelope: Envelope, culprit: Culprit, group: int, block: int
    ) -> None:
        generation = case.state.pool(group).block(block).generation
        cause = Violation(
            check="free-in-flight",
            fault_class="F04",
            variant="freed",
            culprit=culprit,
            seq=envelope.seq,
            step=envelope.step,
            explanation=f"block {block} was freed while a step under way uses it",
            block=block,
            is_reported=False,
        )
        for number in (generation, generation + 1):
            case.causes.setdefault(("flight", group, block, number), cause)

    # Who else is affected.

    def _shared(self, event: BlockShared, case: Case) -> None:
        """Whoever shares what a victim computed after its foreign read."""
        if not self._tainted:
            return
        pool = case.state.pool(event.group)
        for slot in pool.slots_of(event.block):
            write = case.state.writer(event.group, slot)
            if write is None or write.request is None or write.request == event.request:
                continue
            step, violation = self._tainted.get(write.request, (0, None))
            if violation is None or write.step < step:
                continue
            if event.request not in (*violation.also_affected, violation.source):
                violation.also_affected.append(event.request)


def cause_of(case: Case, row: Row, problem: SlotProblem) -> Violation | None:
    """What made the read possible: the mask, the row, the table, the share, the writer, or the
    block's count, in that order."""
    if problem.cause is not None:
        return problem.cause
    write, block, generation = problem.write, problem.block, problem.generation
    size = case.state.pool(row.group).block_size
    of_reader: list[Subject] = [("row", row.group, row.request, row.step)]
    last: list[Subject] = [
        block_subject(row.group, block, generation),
        ("length", row.group, row.request, row.step),
    ]
    if problem.position is not None:
        index = problem.position // size
        of_reader += [
            ("entry", row.group, row.request, index, block),
            ("share", row.group, row.request, index, block, generation),
            misplaced_subject(row.group, str(row.request), problem.position),
        ]
        last.append(unwritten_subject(row, index, block, generation))
    if problem.kind == "foreign":
        last.append(("flight", row.group, block, generation))
    return (
        case.cause(*of_reader)
        or cause_of_content(case, row.group, block, generation, write)
        or case.cause(*last)
    )


def _remember_pads(case: Case, culprit: Culprit, group: int, slots: Iterable[int]) -> None:
    """A pad that writes outside the sentinels (F09) accounts for whoever reads it: the build that
    mapped it there or, if that was right, the write."""
    pool = case.state.pool(group)
    for slot in slots:
        if slot < 0 or pool.block_size < 1 or slot // pool.block_size in pool.sentinels:
            continue
        cause = Violation(
            check="pad-write",
            fault_class="F09",
            variant="pad",
            culprit=culprit,
            seq=culprit.seq,
            step=culprit.step,
            explanation=f"a pad wrote slot {slot}",
            slot=slot,
            is_reported=False,
        )
        case.causes.setdefault(("pad", group, slot, culprit.step), cause)


def _copied(event: BlockCopied, case: Case) -> list[int]:
    size = case.state.pool(event.group).block_size
    count = min(max(event.slots, 0), size)
    return [event.destination * size + offset for offset in range(count)]
