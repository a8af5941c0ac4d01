"""What the rules know where a ring begins: the state, and nothing of the events that made it.

Holds and contents are taken from the state. What is wrong with it there already is blamed on the
beginning itself: the event that was to blame is no longer in the trace, and no later one may be
taken for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...recorder.events import Envelope
from ..state import Block, Pool
from ..writes import Write
from .base import Culprit, Violation
from .case import Case, Hold, Subject
from .causes import block_subject, handed_subject, listed_subject, taken_subject


def cut_off(mark: Envelope) -> Culprit:
    """Stands for an event that lies before the beginning."""
    return Culprit(mark.seq, mark.step, "SpanDropped", None, None)


def take_up(case: Case, mark: Envelope) -> None:
    """After `mark` was folded, which bears the state."""
    beginning = _Beginning(case, mark)
    for group, pool in case.state.pools.items():
        for number, block in pool.blocks.items():
            if number not in pool.sentinels and block.is_known:
                beginning.take_holds(group, pool, number, block)
    for group, pool in case.state.pools.items():
        beginning.judge_blocks(group, pool)
        beginning.judge_tables(group, pool)
        beginning.judge_index(group, pool)


class _Beginning:
    def __init__(self, case: Case, mark: Envelope) -> None:
        self._case = case
        self._mark = mark
        self._culprit = cut_off(mark)

    def take_holds(self, group: int, pool: Pool, number: int, block: Block) -> None:
        case = self._case
        writes = list(_present(case, group, pool, number, block))
        for holder in block.holders:
            if holder.table_index is None:
                continue
            is_share = any(write.request != holder.request for write in writes)
            key = block.keys[-1] if is_share and block.keys else None
            hold = Hold(
                number, holder.table_index, block.generation, self._culprit, is_share, key, None,
                replaced=False,
            )  # fmt: skip
            case.take_hold(group, holder.request, hold)
            if is_share or len(block.holders) > 1:
                case.shared_generations.add((group, number, block.generation))
            self._judge_content(group, holder.request, hold, writes)

    def _judge_content(self, group: int, request: str, hold: Hold, writes: list[Write]) -> None:
        """Whether the request may read what is in the block that it holds."""
        case = self._case
        size = case.state.pool(group).block_size
        for write in writes:
            if write.request == request:
                continue
            position = hold.at * size + write.slot % size
            found = write.request is None or case.context.mismatch(
                case.state, write, request, position, None
            )
            if found:
                self._remember(
                    ("share", group, request, hold.at, hold.block, hold.generation),
                    taken_subject(group, request, hold.block),
                )
                return

    def judge_blocks(self, group: int, pool: Pool) -> None:
        """A wrong count is seen in the state itself: that is a finding, of whatever made it."""
        queued = set(pool.free)
        for number, block in pool.blocks.items():
            held = len(block.holders)
            if number in pool.sentinels or not block.is_known:
                continue
            if block.ref_count == held and not (held and (block.is_free or number in queued)):
                continue
            here = block_subject(group, number, block.generation)
            known = self._case.report(self._count_violation(number, block), here)
            self._case.causes.setdefault(handed_subject(group, number, block.generation), known)

    def judge_tables(self, group: int, pool: Pool) -> None:
        """Entries that a table kept after the request gave the block up."""
        case = self._case
        for request, table in pool.tables.items():
            for index, number in enumerate(table):
                hold = case.hold(group, request, index)
                if number is None or number in pool.sentinels:
                    continue
                if hold is None or hold.block != number:
                    self._remember(
                        ("entry", group, request, index, number),
                        listed_subject(group, request, number),
                    )

    def judge_index(self, group: int, pool: Pool) -> None:
        """Keys that outlived their block's generation."""
        for key, entries in pool.index.items():
            for entry in entries:
                if entry.generation != pool.block(entry.block).generation:
                    self._remember(("stale", group, entry.block, key))

    def _remember(self, *subjects: Subject) -> None:
        known = Violation(
            check="foreign-read",
            fault_class=None,
            variant="cut-off",
            culprit=self._culprit,
            seq=self._mark.seq,
            step=self._mark.step,
            explanation="what led to it lies before the beginning of the ring",
            is_reported=False,
        )
        for subject in subjects:
            self._case.causes.setdefault(subject, known)

    def _count_violation(self, number: int, block: Block) -> Violation:
        held = len(block.holders)
        wrong = block.ref_count != held
        what = (
            f"has {held} holders and a count of {block.ref_count}" if wrong else "is held and free"
        )
        return Violation(
            check="ref-count",
            fault_class="F06",
            variant="cut-off",
            culprit=self._culprit,
            seq=self._mark.seq,
            step=self._mark.step,
            explanation=f"block {number} {what}",
            block=number,
            victim=block.holders[0].request if block.holders else None,
            expected=held,
            actual=block.ref_count,
        )


def _present(case: Case, group: int, pool: Pool, number: int, block: Block) -> Iterator[Write]:
    """What was written in the block's present generation."""
    for slot in pool.slots_of(number):
        write = case.state.writer(group, slot)
        if write is not None and write.generation == block.generation:
            yield write
