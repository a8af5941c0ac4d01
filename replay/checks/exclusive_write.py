"""`exclusive-write` (F19): nobody writes into a block that others hold too.

The first write of a slot in a generation is exempt when a holder writes the tokens that the block
is keyed for: whoever shares it in the same step relies on exactly that write. A copy on write is
complete before its destination is read, and copies what its destination's request would have
computed itself (xLLM 1984).
"""

from __future__ import annotations

from ...recorder.events import BlockCopied, Envelope, SlotsWritten
from ..writes import Write
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Subject
from .contents import SlotProblem
from .context import Mismatch
from .ref_count import subject as block_subject
from .rows import Row, StepRows


class ExclusiveWrite(Rule):
    slug = "exclusive-write"
    fault_class = "F19"
    before_kinds = (SlotsWritten,)
    after_kinds = (SlotsWritten, BlockCopied)

    def __init__(self) -> None:
        self._written_before: set[int] = set()
        self._writers: dict[tuple[int, int, int], str] = {}
        self._copies: dict[tuple[int, int, int], Culprit] = {}
        self._awaited: dict[tuple[int, int, int], Violation] = {}
        self._announced: dict[tuple[int, int, int], Violation] = {}
        """(step, group, slot) -> a wrong write that a mapping announces: its event is to come."""

    def before(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        assert isinstance(event, SlotsWritten)
        self._written_before = {
            slot for slot in event.slots if slot >= 0 and case.state.is_written(event.group, slot)
        }

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        if isinstance(event, BlockCopied):
            self._copied(envelope, event, case)
        elif isinstance(event, SlotsWritten) and event.write in ("prefill", "decode", "draft"):
            self._written(envelope, event, case)

    def read(self, step: StepRows, case: Case) -> None:
        self._judge_mapped(step, case)
        for row in step.live():
            for problem in row.problems:
                if problem.cause is None:
                    self._judge_copy_read(case, step, row, problem)

    def _judge_mapped(self, step: StepRows, case: Case) -> None:
        """What the slot mappings will write into shared blocks, since rows read it now."""
        opened = case.step_rows(step.step)
        for (group, slot), writes in opened.mapped.items() if opened else ():
            live = [w for w in writes if w.request is not None]
            writers = {str(w.request) for w in live}
            block = slot // case.state.pool(group).block_size
            is_shared = opened is not None and opened.holders[group, block] > 1
            if len(writers) < 2 and not is_shared:
                continue
            violation = self._wrong_write(step, case, group, block, slot, live)
            if violation is not None:
                self._announced[step.step, group, slot] = violation

    def _wrong_write(
        self, step: StepRows, case: Case, group: int, block: int, slot: int, writes: list[Write]
    ) -> Violation | None:
        pool = case.state.pool(group)
        first, last = str(writes[0].request), str(writes[-1].request)
        if not writes or block in pool.sentinels:
            return None
        if self._is_explained(step.step, case, group, block, last, first):
            return None
        if first == last and (
            len(pool.block(block).holders) < 2
            or self._is_exempt(case, group, block, slot, writes[0].token)
        ):
            return None
        victim = first if first != last else _other_holder(case, group, block, last)
        builder = next(row for row in step.live() if row.request == last)
        violation = self._violation(
            "written-in-place", builder.culprit("slots"), builder.build.seq, step.step,
            f"{last} wrote slot {slot} of block {block}, which {victim} uses too",
            block=block, slot=slot, victim=victim, source=last,
        )  # fmt: skip
        generation = pool.block(block).generation
        return case.report(violation, exclusive_subject(group, block, generation))

    def _is_exempt(self, case: Case, group: int, block: int, slot: int, token: int | None) -> bool:
        """The first write of the slot in this generation, with what the block is keyed for."""
        offset = slot % case.state.pool(group).block_size
        is_first = not case.state.is_written(group, slot)
        return is_first and _is_keyed_for(case, group, block, offset, token)

    def _written(self, envelope: Envelope, event: SlotsWritten, case: Case) -> None:
        group = event.group or 0
        pool = case.state.pool(group)
        tokens = event.tokens or (None,) * len(event.slots)
        shared: dict[int, bool] = {}
        for request, token, slot in zip(event.requests, tokens, event.slots, strict=False):
            if slot < 0 or request is None or pool.block_size < 1:
                continue
            block = slot // pool.block_size
            announced = self._announced.pop((envelope.step, group, slot), None)
            if announced is not None and announced.culprit.kind == "InputsBuilt":
                announced.culprit = culprit_of(envelope, announced.source)
            self._one_writer(envelope, case, group, block, slot, request)
            if block not in shared:
                shared[block] = case.holders_when_written(group, block, slot, envelope.step) > 1
            if shared[block] and case.is_holder(group, request, block):
                self._judge_shared(envelope, case, group, block, slot, request, token)

    def _one_writer(
        self, envelope: Envelope, case: Case, group: int, block: int, slot: int, request: str
    ) -> None:
        """One writer per slot and step; sentinels are anybody's."""
        other = self._writers.setdefault((envelope.step, group, slot), request)
        if other == request or block in case.state.pool(group).sentinels:
            return
        if not self._is_explained(envelope.step, case, group, block, request, other):
            self._report_write(
                case, envelope, group, block, slot, other, request,
                f"{other} and {request} both wrote slot {slot} in one step",
            )  # fmt: skip

    def _judge_shared(
        self,
        envelope: Envelope,
        case: Case,
        group: int,
        block: int,
        slot: int,
        request: str,
        token: int | None,
    ) -> None:
        offset = slot % case.state.pool(group).block_size
        is_first = slot not in self._written_before
        if is_first and _is_keyed_for(case, group, block, offset, token):
            return
        if self._is_explained(envelope.step, case, group, block, request, request):
            return
        others = [
            h.request for h in case.state.pool(group).block(block).holders if h.request != request
        ]
        victim = others[0] if others else None
        self._report_write(
            case, envelope, group, block, slot, victim, request,
            f"{request} wrote slot {slot} of block {block}, which {victim} holds too",
        )  # fmt: skip

    def _is_explained(
        self, step: int, case: Case, group: int, block: int, request: str, other: str
    ) -> bool:
        """Whether a wrong count, table or slot already accounts for the write."""
        generation = case.state.pool(group).block(block).generation
        return (
            case.cause(
                block_subject(group, block, generation),
                ("address", group, step, request),
                ("address", group, step, other),
                ("row", group, request, step),
                ("row", group, other, step),
            )
            is not None
            or not case.is_holder(group, request, block)
            or not case.is_holder(group, other, block)
        )

    def _report_write(
        self,
        case: Case,
        envelope: Envelope,
        group: int,
        block: int,
        slot: int,
        victim: str | None,
        source: str,
        explanation: str,
    ) -> None:
        generation = case.state.pool(group).block(block).generation
        case.report(
            self._violation(
                "written-in-place", culprit_of(envelope, source), envelope.seq, envelope.step,
                explanation, block=block, slot=slot, victim=victim, source=source,
            ),
            exclusive_subject(group, block, generation),
        )  # fmt: skip

    # Copies.

    def _copied(self, envelope: Envelope, event: BlockCopied, case: Case) -> None:
        group = event.group or 0
        pool = case.state.pool(group)
        block = pool.block(event.destination)
        name = (group, event.destination, block.generation)
        holder = block.holders[0] if block.holders else None
        culprit = culprit_of(envelope, holder.request if holder else None)
        self._copies.setdefault(name, culprit)
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            awaited.culprit, awaited.variant = culprit, "copied-late"
            return
        if holder is None or holder.table_index is None:
            return
        known = case.state.requests.get(holder.request)
        if known is None:
            return
        for offset in range(min(max(event.slots, 0), pool.block_size)):
            slot = event.destination * pool.block_size + offset
            position = holder.table_index * pool.block_size + offset
            write = case.state.writer(group, slot)
            if position >= known.computed or write is None or write.generation is None:
                continue
            mismatch = case.context.mismatch(case.state, write, holder.request, position, None)
            if mismatch is not None:
                self._report_copy(
                    case, envelope.seq, envelope.step, culprit, name, slot, mismatch,
                    holder.request, write.request,
                )  # fmt: skip
                return

    def _judge_copy_read(self, case: Case, step: StepRows, row: Row, problem: SlotProblem) -> None:
        name = (row.group, problem.block, problem.generation)
        hold, write, request = problem.hold, problem.write, str(row.request)
        if hold is None or case.cause(block_subject(*name), copy_subject(*name)) is not None:
            return
        if problem.mismatch is not None and write is not None and write.kind == "copy":
            culprit = self._copies.get(name) or hold.culprit
            self._report_copy(
                case, row.build.seq, step.step, culprit, name, problem.slot, problem.mismatch,
                request, write.request,
            )  # fmt: skip
        elif problem.kind == "unwritten" and (hold.replaced or name in self._copies):
            self._report_missing_copy(case, step, row, problem, name)

    def _report_missing_copy(
        self,
        case: Case,
        step: StepRows,
        row: Row,
        problem: SlotProblem,
        name: tuple[int, int, int],
    ) -> None:
        """Late or missing is settled by whether the copy comes; incomplete if it has come."""
        assert problem.hold is not None
        request = str(row.request)
        copied = self._copies.get(name)
        violation = self._violation(
            "copied-partly" if copied else "not-copied",
            copied or problem.hold.culprit,
            row.build.seq,
            step.step,
            f"{request} reads slot {problem.slot} of block {problem.block}, "
            "to which it was not copied",
            block=problem.block, slot=problem.slot, row=row.number, victim=request,
            source=problem.write.request if problem.write else None,
        )  # fmt: skip
        if case.report(violation, copy_subject(*name)) is violation and copied is None:
            self._awaited[name] = violation

    def _report_copy(
        self,
        case: Case,
        seq: int,
        step: int,
        culprit: Culprit,
        name: tuple[int, int, int],
        slot: int,
        mismatch: Mismatch,
        victim: str,
        source: str | None,
    ) -> None:
        case.report(
            self._violation(
                "copied-wrongly", culprit, seq, step,
                f"slot {slot} was copied for {victim}, but its {mismatch.reason} differ: "
                f"expected {mismatch.expected!r}, found {mismatch.actual!r}",
                block=name[1], slot=slot, victim=victim, source=source,
                expected=mismatch.expected, actual=mismatch.actual,
            ),
            copy_subject(*name),
        )  # fmt: skip

    def _violation(
        self,
        variant: str,
        culprit: Culprit,
        seq: int,
        step: int,
        explanation: str,
        **fields: object,
    ) -> Violation:
        return Violation(
            check=self.slug,
            fault_class=self.fault_class,
            variant=variant,
            culprit=culprit,
            seq=seq,
            step=step,
            explanation=explanation,
            **fields,  # pyright: ignore[reportArgumentType]
        )


def exclusive_subject(group: int, block: int, generation: int) -> Subject:
    return ("exclusive", group, block, generation)


def copy_subject(group: int, block: int, generation: int) -> Subject:
    return ("copy", group, block, generation)


def _other_holder(case: Case, group: int, block: int, request: str) -> str | None:
    holders = case.state.pool(group).block(block).holders
    return next((h.request for h in holders if h.request != request), None)


def _is_keyed_for(case: Case, group: int, block: int, offset: int, token: int | None) -> bool:
    """Whether the block is registered, in this generation, with that token in that place."""
    pool = case.state.pool(group)
    generation = pool.block(block).generation
    return any(
        entry.block == block
        and entry.generation == generation
        and (token is None or (offset < len(entry.tokens) and entry.tokens[offset] == token))
        for key in pool.block(block).keys
        for entry in pool.index.get(key, ())
    )
