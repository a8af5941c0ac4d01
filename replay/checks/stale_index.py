"""`stale-index` (F02): the prefix index names blocks whose present generation carries the key.

A block that is handed out again with its old key still in the index answers for content that it
no longer holds (vLLM 4761; nano-vllm 163).
"""

from __future__ import annotations

from ...recorder.events import (
    BlockAllocated,
    BlockRegistered,
    BlockShared,
    BlockUnregistered,
    Envelope,
    PrefixLookedUp,
    RunEnded,
    Scalar,
    StepScheduled,
)
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Subject

Stale = tuple[int, int, Scalar]
"""(group, block, key)"""


class StaleIndex(Rule):
    slug = "stale-index"
    fault_class = "F02"
    before_kinds = (BlockAllocated,)
    after_kinds = (
        BlockRegistered,
        BlockUnregistered,
        PrefixLookedUp,
        BlockShared,
        StepScheduled,
        RunEnded,
    )

    def __init__(self) -> None:
        self._kept: dict[Stale, Culprit] = {}
        self._dead_hits: dict[tuple[str, int], tuple[Scalar, Culprit]] = {}

    def before(self, envelope: Envelope, case: Case) -> None:
        """Whatever key the block carries now must go before the allocation's step is scheduled."""
        event = envelope.event
        assert isinstance(event, BlockAllocated)
        for key in case.prior.keys:
            self._kept[event.group or 0, event.block, key] = culprit_of(envelope)

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        match event:
            case BlockRegistered() | BlockUnregistered():
                self._kept.pop((event.group or 0, event.block, event.key), None)
            case PrefixLookedUp():
                self._report_kept(envelope, case, event.keys)
                self._looked_up(envelope, event, case)
            case BlockShared():
                self._report_kept(envelope, case, (event.key,))
                self._shared(envelope, event, case)
            case _:
                self._report_kept(envelope, case)
                self._report_dead_hits(envelope, case)

    def _looked_up(self, envelope: Envelope, event: PrefixLookedUp, case: Case) -> None:
        """A lookup names no KV group: a block is live that any of them has under the key."""
        if case.has_dropped or not case.registrations:
            return
        pools = case.state.pools.values()
        for key, block in zip(event.keys, event.blocks, strict=False):
            if any(block in pool.sentinels for pool in pools):
                continue  # a null block, for what lies behind a window
            if not any(e.block == block for pool in pools for e in pool.index.get(key, ())):
                self._dead_hits[event.request, block] = (key, culprit_of(envelope))

    def _shared(self, envelope: Envelope, event: BlockShared, case: Case) -> None:
        self._dead_hits.pop((event.request, event.block), None)
        group = event.group or 0
        if event.key is None or case.has_dropped or not case.registrations:
            return
        pool = case.state.pool(group)
        generation = pool.block(event.block).generation
        share = ("share", group, event.request, event.index, event.block, generation)
        entries = [e for e in pool.index.get(event.key, ()) if e.block == event.block]
        if entries and entries[0].generation == generation:
            return
        if self._is_loaded(case, event):
            return
        known = case.cause(stale_subject(group, event.block, event.key)) if entries else None
        if known is not None:
            case.causes.setdefault(share, known)
            if known.victim is None:
                known.victim = event.request
            return
        self._report(
            case, envelope, culprit_of(envelope), "dead-key",
            f"{event.request} took block {event.block} for key {event.key!r}, "
            "under which it is not registered",
            share, block=event.block, victim=event.request, actual=event.key,
        )  # fmt: skip

    def _is_loaded(self, case: Case, event: BlockShared) -> bool:
        """A block that a load fills under that key needs no entry yet."""
        return any(
            (number, key) == (event.block, event.key)
            for transfer in case.state.transfers.values()
            if (transfer.event.group or 0) == (event.group or 0)
            for number, key in zip(transfer.event.blocks, transfer.event.keys, strict=False)
        )

    def _report_kept(
        self, envelope: Envelope, case: Case, used: tuple[Scalar | None, ...] | None = None
    ) -> None:
        """Once the step is scheduled, or as soon as one of the keys is used."""
        for (group, block, key), culprit in tuple(self._kept.items()):
            if used is not None and key not in used:
                continue
            del self._kept[group, block, key]
            self._report(
                case, envelope, culprit, "kept-key",
                f"block {block} was handed to {culprit.request} while the index kept it "
                f"under key {key!r}",
                stale_subject(group, block, key), block=block, source=culprit.request, actual=key,
            )  # fmt: skip

    def _report_dead_hits(self, envelope: Envelope, case: Case) -> None:
        hits, self._dead_hits = self._dead_hits, {}
        for (request, block), (key, culprit) in hits.items():
            self._report(
                case, envelope, culprit, "dead-hit",
                f"a lookup for {request} gave block {block} for key {key!r}, "
                "under which it is not registered",
                ("hit", request, block, key), block=block, victim=request, actual=key,
            )  # fmt: skip

    def _report(
        self,
        case: Case,
        envelope: Envelope,
        culprit: Culprit,
        variant: str,
        explanation: str,
        about: Subject,
        **fields: object,
    ) -> None:
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
        case.report(violation, about)


def stale_subject(group: int, block: int, key: Scalar) -> Subject:
    return ("stale", group, block, key)
