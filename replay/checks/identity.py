"""`identity` (F01): a shared block holds what its new holder would have computed itself.

For every written slot of the block, the writer's tokens 0..p are the reader's, at the same
position; and it was computed for the same adapter, tenant (unless sharing is global), epoch and
extra keys. The logged `parent_key` is that of the producer's block before it, and no chain of
parents runs in a circle. Seen as CVE-2025-25183; vLLM 44701, 30931; vllm-mlx 444.

A share whose slots are written later, in the same step, is judged when the reader reads them. A
load is a share of what was stored under its key. What fails in its epoch alone is F17.
"""

from __future__ import annotations

from collections.abc import Hashable

from ...recorder.events import (
    BlockRegistered,
    BlockShared,
    Envelope,
    Scalar,
    TransferStarted,
)
from ..writes import Write
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Hold
from .causes import (
    block_subject,
    cause_of_content,
    handed_subject,
    key_subject,
    listed_subject,
    taken_subject,
)
from .context import Mismatch
from .dangling_table import forked_from_kept
from .rows import StepRows

ShareSubject = tuple[str, int, str, int, int, int]
"""("share", group, request, index, block, generation)"""

_WHAT = {
    "tokens": "their tokens differ",
    "position": "it holds another position",
    "adapter": "it was computed with another adapter",
    "tenant": "it belongs to another tenant",
    "extra_keys": "their extra keys differ",
    "epoch": "it was computed in another epoch",
}


class Identity(Rule):
    slug = "identity"
    fault_class = "F01"
    after_kinds = (BlockRegistered, BlockShared, TransferStarted)

    def __init__(self) -> None:
        self._parents: dict[tuple[int, Scalar], Scalar] = {}
        self._is_parent: set[tuple[int, Scalar]] = set()
        self._wrong_parents: dict[tuple[int, int, int, Scalar], tuple[object, object]] = {}

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        if isinstance(event, BlockRegistered):
            self._registered(event, case)
        elif isinstance(event, BlockShared):
            self._shared(envelope, event, case)
        elif isinstance(event, TransferStarted) and event.direction == "load":
            self._loaded(envelope, event, case)

    def take_up(self, mark: Envelope, case: Case) -> None:
        for group, pool in case.state.pools.items():
            for key, entries in pool.index.items():
                for parent in (e.parent_key for e in entries if e.parent_key is not None):
                    self._parents[group, key] = parent
                    self._is_parent.add((group, parent))

    def forget(self, case: Case) -> None:
        """A chain that no key of the index leads to can't be closed to a circle by a share."""
        kept: dict[tuple[int, Scalar], Scalar] = {}
        for group, pool in case.state.pools.items():
            for key in pool.index:
                at = key
                while (group, at) in self._parents and (group, at) not in kept:
                    kept[group, at] = self._parents[group, at]
                    at = kept[group, at]
        self._parents = kept
        self._is_parent = {(group, parent) for (group, _), parent in kept.items()}

    def read(self, step: StepRows, case: Case) -> None:
        """Slots that were written after the share."""
        for row in step.live():
            for problem in row.problems:
                hold, write, mismatch = problem.hold, problem.write, problem.mismatch
                if hold is None or hold.key is None or write is None or mismatch is None:
                    continue
                if write.kind == "transfer":
                    continue
                share = share_subject(row.group, str(row.request), hold)
                if not self._is_explained(case, share, write, hold.key):
                    self._report(
                        case, row.build.seq, step.step, hold.culprit, share, write, mismatch,
                        problem.slot, str(row.request),
                    )  # fmt: skip

    def _shared(self, envelope: Envelope, event: BlockShared, case: Case) -> None:
        group = event.group or 0
        hold = case.holds[group, event.request][event.index]
        share = share_subject(group, event.request, hold)
        made = case.cause(key_subject(group, event.block, hold.generation, event.key))
        if made is not None:
            case.causes.setdefault(share, made)
        if case.cause(share) is not None:
            return
        reader = case.state.requests.get(event.request)
        if reader is None:
            return
        pool = case.state.pool(group)
        end = reader.taken_over if event.key is None and reader.added.parent else None
        kept = forked_from_kept(envelope, event, case, reader.added.parent)
        for offset, slot in enumerate(pool.slots_of(event.block)):
            position = event.index * pool.block_size + offset
            if not case.state.is_written(group, slot) or (end is not None and position >= end):
                continue
            write = case.state.writer(group, slot)
            if write is None or write.request is None:
                continue
            mismatch = case.context.mismatch(case.state, write, event.request, position, hold.epoch)
            if mismatch is None:
                continue
            if kept is not None:
                case.report(kept, share)
            elif not self._is_explained(case, share, write, event.key):
                self._report(
                    case, envelope.seq, envelope.step, hold.culprit, share, write, mismatch,
                    slot, event.request,
                )  # fmt: skip
            return
        if kept is not None:  # nothing wrong is in it yet
            kept.is_reported = False
            case.causes.setdefault(share, kept)
        self._judge_parent(envelope, event, case, group, hold, share)

    def _judge_parent(
        self,
        envelope: Envelope,
        event: BlockShared,
        case: Case,
        group: int,
        hold: Hold,
        share: ShareSubject,
    ) -> None:
        if event.key is None:
            return
        wrong = self._wrong_parents.get((group, event.block, hold.generation, event.key))
        if wrong is None:
            return
        handed = case.cause(handed_subject(group, event.block, hold.generation))
        if handed is not None:
            case.causes.setdefault(share, handed)
            return
        expected, actual = wrong
        case.report(
            Violation(
                check=self.slug,
                fault_class=self.fault_class,
                variant="parent",
                culprit=hold.culprit,
                seq=envelope.seq,
                step=envelope.step,
                explanation=(
                    f"{event.request} shared block {event.block} under key {event.key!r}, whose "
                    f"parent {actual!r} is not the key of the block before it"
                ),
                block=event.block,
                expected=expected,
                actual=actual,
                victim=event.request,
            ),
            share,
        )

    def _registered(self, event: BlockRegistered, case: Case) -> None:
        """Remember a wrong parent: the share that relies on it is to blame."""
        group, generation = event.group or 0, case.prior.generation
        name = (group, event.block, generation, event.key)
        self._wrong_parents.pop(name, None)
        if event.request is not None:
            listed = case.cause(listed_subject(group, event.request, event.block))
            if listed is not None and not self._is_of_a_hold(event, case, group):
                case.causes.setdefault(key_subject(*name), listed)
        if event.parent_key is None:
            return
        if self._closes_a_circle(group, event.key, event.parent_key):
            self._wrong_parents[name] = ("a chain without circles", event.parent_key)
            return
        before = self._keys_before(event, case, group)
        if before and event.parent_key not in before:
            self._wrong_parents[name] = (before[-1], event.parent_key)

    def _is_of_a_hold(self, event: BlockRegistered, case: Case, group: int) -> bool:
        """Whether the tokens are those of an index at which the producer holds the block."""
        producer = str(event.request)
        known, size = case.state.requests.get(producer), case.state.pool(group).block_size
        return known is not None and any(
            case.hold(group, producer, index) is not None
            and known.tokens[index * size : (index + 1) * size] == event.tokens
            for index in case.held_indices(group, producer, event.block)
        )

    def _closes_a_circle(self, group: int, key: Scalar, parent: Scalar) -> bool:
        self._parents[group, key] = parent
        self._is_parent.add((group, parent))
        if (group, key) not in self._is_parent:
            return False
        seen: set[Scalar] = set()
        at: Scalar | None = parent
        while at is not None and at not in seen:
            if at == key:
                return True
            seen.add(at)
            at = self._parents.get((group, at))
        return False

    def _keys_before(self, event: BlockRegistered, case: Case, group: int) -> tuple[Scalar, ...]:
        """The keys of the producer's block before this one, as far as it has any."""
        if event.request is None:
            return ()
        indices = case.held_indices(group, event.request, event.block)
        if not indices or indices[0] == 0:
            return ()
        before = case.hold(group, event.request, indices[0] - 1)
        if before is None:
            return ()
        block = group, before.block, before.generation
        if case.cause(
            share_subject(group, event.request, before),
            block_subject(*block),
            handed_subject(*block),
        ):
            return ()  # whose keys it has is part of that incident
        return case.state.pool(group).block(before.block).keys

    def _loaded(self, envelope: Envelope, event: TransferStarted, case: Case) -> None:
        group = event.group or 0
        pool = case.state.pool(group)
        for block, key in zip(event.blocks, event.keys, strict=False):
            stored = case.state.stored_under(group, key)
            if stored is None:
                continue
            for holder in pool.block(block).holders:
                hold = case.hold(group, holder.request, holder.table_index or 0)
                if hold is not None and hold.block == block:
                    self._judge_load(envelope, case, group, holder.request, hold, stored)

    def _judge_load(
        self,
        envelope: Envelope,
        case: Case,
        group: int,
        request: str,
        hold: Hold,
        stored: tuple[Write | None, ...],
    ) -> None:
        size = case.state.pool(group).block_size
        share = share_subject(group, request, hold)
        epoch = case.state.epoch_of(request)
        for offset, write in enumerate(stored):
            if write is None or write.request is None:
                continue
            position = hold.at * size + offset
            mismatch = case.context.mismatch(case.state, write, request, position, epoch)
            if mismatch is not None:
                self._report(
                    case, envelope.seq, envelope.step, culprit_of(envelope, request), share,
                    write, mismatch, hold.block * size + offset, request,
                )  # fmt: skip
                return

    def _is_explained(self, case: Case, share: ShareSubject, write: Write, key: Hashable) -> bool:
        """Whether the block holds that, or has that key, because of an earlier wrong decision, of
        which the share is then a consequence."""
        _, group, _, _, block, generation = share
        known = case.cause(share) or cause_of_content(case, group, block, generation, write)
        known = known or case.cause(key_subject(group, block, generation, key))
        if known is not None:
            case.causes.setdefault(share, known)
        return known is not None

    def _report(
        self,
        case: Case,
        seq: int,
        step: int,
        culprit: Culprit,
        share: ShareSubject,
        write: Write,
        mismatch: Mismatch,
        slot: int,
        request: str,
    ) -> None:
        _, group, _, _, block, _ = share
        size = case.state.pool(group).block_size
        is_epoch = mismatch.reason == "epoch"
        violation = Violation(
            check="epoch" if is_epoch else self.slug,
            fault_class="F17" if is_epoch else self.fault_class,
            variant=mismatch.reason if is_epoch else "content",
            culprit=culprit,
            seq=seq,
            step=step,
            explanation=(
                f"{request} shared block {slot // size} written by {write.request}, "
                f"but {_WHAT[mismatch.reason]}: expected {mismatch.expected!r}, "
                f"found {mismatch.actual!r}"
            ),
            block=slot // size,
            slot=slot,
            expected=mismatch.expected,
            actual=mismatch.actual,
            victim=request,
            source=write.request,
            is_reported=not is_epoch,
        )
        known = case.report(violation, share)
        case.causes.setdefault(taken_subject(group, request, block), known)


def share_subject(group: int, request: str, hold: Hold) -> ShareSubject:
    return ("share", group, request, hold.at, hold.block, hold.generation)
