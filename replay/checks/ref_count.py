"""`ref-count` (F06): a block's count is the number of its holders.

A count that is off by one frees a block under somebody's feet, or never frees it. Seen in vLLM
42571 (double release), as a missing acquire, as a block twice in a free list, as two threads that
pop one block.
"""

from __future__ import annotations

from ...recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    Envelope,
    RequestFinished,
    RunEnded,
    StepScheduled,
)
from ..state import Block
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Subject
from .causes import block_subject, handed_subject, scrubbed_subject
from .taken_up import cut_off

Name = tuple[int, int, int]
"""(group, block, generation)"""


class RefCount(Rule):
    slug = "ref-count"
    fault_class = "F06"
    before_kinds = (BlockAllocated, BlockShared, BlockReleased)
    after_kinds = (
        BlockAllocated,
        BlockShared,
        BlockReleased,
        BlockFreed,
        BlockScrubbed,
        RequestFinished,
        StepScheduled,
        RunEnded,
    )

    def __init__(self) -> None:
        self._zeroed: dict[tuple[int, int], Culprit] = {}
        self._finished: dict[str, Culprit] = {}
        self._was_queued = False
        self._last_zeroed: tuple[int, int] | None = None

    def before(self, envelope: Envelope, case: Case) -> None:
        """A count that reached zero must have been freed by now."""
        event = envelope.event
        if isinstance(event, BlockAllocated | BlockShared):
            self._judge_unfreed(envelope, case, event.group or 0, event.block)
            self._was_queued = event.block in case.state.pool(event.group).free

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        match event:
            case BlockAllocated():
                self._allocated(envelope, event, case)
            case BlockShared():
                self._shared(envelope, event, case)
            case BlockReleased():
                self._released(envelope, event, case)
            case BlockFreed():
                self._freed(envelope, event, case)
            case BlockScrubbed():
                self._scrubbed(event, case)
            case RequestFinished():
                self._finished.setdefault(event.request, culprit_of(envelope))
            case StepScheduled() | RunEnded():
                self._judge_finished(envelope, case)
            case _:
                pass
        if isinstance(event, RunEnded):
            for group, pool in case.state.pools.items():
                for block in sorted(pool.unfreed, key=pool.unfreed.__getitem__):
                    self._judge_unfreed(envelope, case, group, block)

    def take_up(self, mark: Envelope, case: Case) -> None:
        self._zeroed = {
            (g, b): cut_off(mark) for g, p in case.state.pools.items() for b in p.unfreed
        }
        holders = {
            holder.request
            for pool in case.state.pools.values()
            for block in pool.blocks.values()
            for holder in block.holders
        }
        for name, known in case.state.requests.items():
            if known.is_finished and name in holders:
                self._finished.setdefault(name, cut_off(mark))

    def _allocated(self, envelope: Envelope, event: BlockAllocated, case: Case) -> None:
        group, prior = event.group or 0, case.prior
        self._zeroed.pop((group, event.block), None)
        before = group, event.block, prior.generation
        after = group, event.block, prior.generation + 1
        if not prior.holders:
            self._inherit(case, before, after)
            return
        if self._was_queued:
            self._blame_earlier_free(case, group, event.block, prior.generation)
        owner = prior.holders[-1].request
        known = self._report(
            case, envelope, culprit_of(envelope), "allocated-while-held",
            f"block {event.block} was handed to {event.request} while {owner} holds it",
            block_subject(*before), block_subject(*after), block=event.block, victim=owner,
            source=event.request, expected=0, actual=len(prior.holders),
        )  # fmt: skip
        case.causes.setdefault(handed_subject(*after), known)

    def _inherit(self, case: Case, before: Name, after: Name) -> None:
        """Whoever still believes to hold the block disturbs its next owners as well."""
        known = case.cause(handed_subject(*before))
        if known is not None and case.has_stale_holders(*before[:2]):
            case.causes.setdefault(handed_subject(*after), known)
            case.causes.setdefault(block_subject(*after), known)

    def _blame_earlier_free(self, case: Case, group: int, block: int, generation: int) -> None:
        """A held block that still waits in the queue was freed once too often, maybe long ago."""
        for earlier in range(generation - 1, -1, -1):
            known = case.cause(block_subject(group, block, earlier))
            if known is not None:
                case.causes.setdefault(block_subject(group, block, generation), known)
                return

    def _shared(self, envelope: Envelope, event: BlockShared, case: Case) -> None:
        group = event.group or 0
        block = case.state.pool(group).block(event.block)
        self._zeroed.pop((group, event.block), None)
        if not block.is_known or event.ref_count == len(block.holders):
            return
        if self._is_astray(case, group, event.block, block, event.ref_count):
            return
        self._report(
            case, envelope, culprit_of(envelope), "share-count",
            f"{event.request} became holder number {len(block.holders)} of block {event.block}, "
            f"but its count is {event.ref_count}",
            block_subject(group, event.block, block.generation), block=event.block,
            victim=event.request, expected=len(block.holders), actual=event.ref_count,
        )  # fmt: skip

    def _released(self, envelope: Envelope, event: BlockReleased, case: Case) -> None:
        group, prior = event.group or 0, case.prior
        block = case.state.pool(group).block(event.block)
        if not block.is_known:
            return
        here = block_subject(group, event.block, block.generation)
        was_holder = len(prior.holders) > len(block.holders)
        if was_holder and not block.holders:
            self._zeroed[group, event.block] = culprit_of(envelope)
            self._last_zeroed = (group, event.block)
        if was_holder and event.ref_count == len(block.holders):
            return
        if was_holder and self._is_astray(case, group, event.block, block, event.ref_count):
            return
        if was_holder:
            variant = "release-count"
            what = f"left {len(block.holders)} holders, but its count is {event.ref_count}"
        else:
            variant = "released-by-nobody"
            what = "was none of its holders"
            listed = case.cause(("entry", group, event.request, event.index, event.block))
            if listed is not None:  # what was wrongly listed is given up as though it were held
                case.causes.setdefault(here, listed)
        astray = () if was_holder else (("astray", event.request),)
        self._report(
            case, envelope, culprit_of(envelope), variant,
            f"{event.request} released block {event.block} and {what}", here, *astray,
            block=event.block, victim=prior.holders[0].request if prior.holders else None,
            expected=len(block.holders), actual=event.ref_count,
        )  # fmt: skip

    def _freed(self, envelope: Envelope, event: BlockFreed, case: Case) -> None:
        group, prior = event.group or 0, case.prior
        if not prior.is_known:
            return
        self._zeroed.pop((group, event.block), None)
        if prior.holders or prior.is_free:
            self._excuse_last_zeroed(case, block_subject(group, event.block, prior.generation))
        by = case.last_release.request if case.last_release else None
        if prior.holders and self._is_astray(case, group, event.block, prior, 0):
            return
        if prior.holders:
            holder = prior.holders[0].request
            self._report(
                case, envelope, culprit_of(envelope, by), "freed-while-held",
                f"block {event.block} was freed while {holder} holds it",
                block_subject(group, event.block, prior.generation), block=event.block,
                victim=holder, expected=0, actual=len(prior.holders),
            )  # fmt: skip
        elif prior.is_free:
            self._report(
                case, envelope, culprit_of(envelope, by), "freed-twice",
                f"block {event.block} was freed although it was free",
                block_subject(group, event.block, prior.generation), block=event.block,
                expected=1, actual=2,
            )  # fmt: skip

    def _scrubbed(self, event: BlockScrubbed, case: Case) -> None:
        """A wrong count alone changes no content; what is done to a block that it freed does."""
        name = event.group or 0, event.block, case.prior.generation
        known = case.cause(block_subject(*name))
        if known is not None:
            case.causes.setdefault(scrubbed_subject(*name), known)

    def _is_astray(self, case: Case, group: int, number: int, block: Block, count: int) -> bool:
        """A holder too many, who released another block in this one's place."""
        astray = [
            known
            for holder in block.holders
            if (known := case.cause(("astray", holder.request))) is not None
        ]
        if not astray or count != len(block.holders) - len(astray):
            return False
        case.causes.setdefault(block_subject(group, number, block.generation), astray[0])
        return True

    def _excuse_last_zeroed(self, case: Case, freed: Subject) -> None:
        """A wrong block was freed: where it stands for the one just released, that explains why
        that one was not."""
        if self._last_zeroed is None or freed in case.causes:
            return
        group, block = self._last_zeroed
        if block in case.state.pool(group).unfreed:
            self._zeroed.pop((group, block), None)

    def _judge_unfreed(self, envelope: Envelope, case: Case, group: int, block: int) -> None:
        pool = case.state.pool(group)
        known, release = pool.block(block), self._zeroed.pop((group, block), None)
        if release is None or block not in pool.unfreed or known.holders or not known.is_known:
            return
        here = block_subject(group, block, known.generation)
        following = block_subject(group, block, known.generation + 1)
        self._report(
            case, envelope, release, "not-freed",
            f"the count of block {block} reached zero and it was not freed",
            here, following, block=block, expected="BlockFreed",
        )  # fmt: skip

    def _judge_finished(self, envelope: Envelope, case: Case) -> None:
        for request, culprit in tuple(self._finished.items()):
            if case.flies(request) or self._is_moving(case, request):
                continue
            del self._finished[request]
            if case.cause(("astray", request)):
                continue  # it released something else instead
            kept = [
                (group, block)
                for (group, name), blocks in case.held_blocks.items()
                if name == request
                for block, count in sorted(blocks.items())
                if count > 0 and case.is_holder(group, request, block)
            ]
            for group, block in kept:
                generation = case.state.pool(group).block(block).generation
                self._report(
                    case, envelope, culprit, "never-released",
                    f"{request} finished and still holds block {block}",
                    block_subject(group, block, generation), block=block, victim=request,
                    expected=0, actual=len(kept),
                )  # fmt: skip

    def _is_moving(self, case: Case, request: str) -> bool:
        """Whether a transfer that is under way is for the request or has one of its blocks."""
        under_way = [transfer.event for transfer in case.state.transfers.values()]
        return any(event.request == request for event in under_way) or any(
            held[block] > 0
            for event in under_way
            if (held := case.held_blocks.get((event.group or 0, request))) is not None
            for block in event.blocks
        )

    def _report(
        self,
        case: Case,
        envelope: Envelope,
        culprit: Culprit,
        variant: str,
        explanation: str,
        *subjects: Subject,
        **fields: object,
    ) -> Violation:
        violation = Violation(
            check=self.slug,
            fault_class=self.fault_class,
            variant=variant,
            culprit=culprit,
            seq=envelope.seq,
            step=envelope.step,
            explanation=explanation,
            **fields,  # pyright: ignore[reportArgumentType]
        )
        return case.report(violation, *subjects)
