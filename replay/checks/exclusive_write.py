"""`exclusive-write` (F19): nobody writes into a block that others hold too.

The first write of a slot in a generation is exempt when a holder writes the tokens that the block
is keyed for: whoever shares it in the same step relies on exactly that write. A copy on write is
complete before its destination is read, and copies what its destination's request would have
computed itself (xLLM 1984).

Slots that a mapping announces are judged at dispatch, with the holders of that moment, since
rows read them then and the write may be logged much later; it is the culprit once it comes.
"""

from __future__ import annotations

from typing import NamedTuple

from ...recorder.events import BlockCopied, Envelope, SlotsWritten
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Subject
from .causes import block_subject, exclusive_subject
from .copies import Copies
from .rows import StepRows


class Place(NamedTuple):
    """A write into a slot, as far as this rule looks at it."""

    group: int
    block: int
    slot: int
    request: str
    position: int
    token: int | None
    is_first: bool
    """Nothing was written there in this generation before."""


class ExclusiveWrite(Rule):
    slug = "exclusive-write"
    fault_class = "F19"
    before_kinds = (SlotsWritten,)
    after_kinds = (SlotsWritten, BlockCopied)

    def __init__(self) -> None:
        self._copies = Copies()
        self._written_before: set[int] = set()
        self._writers: dict[tuple[int, int, int], str] = {}
        self._announced: dict[tuple[int, int, int], Violation] = {}
        """(step, group, slot) -> a wrong write that a mapping announces: its event is to come."""

    def before(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        assert isinstance(event, SlotsWritten)
        opened = case.step_rows(envelope.step)
        group = event.group or 0
        self._written_before = {
            slot
            for slot in event.slots
            if slot >= 0
            and (opened is None or (group, slot) not in opened.mapped)
            and case.state.is_written(group, slot)
        }

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        if isinstance(event, BlockCopied):
            self._copies.copied(envelope, event, case)
        elif isinstance(event, SlotsWritten) and event.write in ("prefill", "decode", "draft"):
            self._written(envelope, event, case)

    def read(self, step: StepRows, case: Case) -> None:
        self._judge_mapped(step, case)
        for row in step.live():
            for problem in row.problems:
                if problem.cause is None:
                    self._copies.read(case, step, row, problem)

    def _judge_mapped(self, step: StepRows, case: Case) -> None:
        """What the slot mappings will write into shared blocks."""
        opened = case.step_rows(step.step)
        if opened is None:
            return
        for (group, slot), writes in opened.mapped.items():
            block = slot // case.state.pool(group).block_size
            if len(writes) < 2 and opened.holders[group, block] < 2:
                continue
            live = [w for w in writes if w.request is not None]
            for write in live:
                other = str(live[0].request)
                place = Place(
                    group, block, slot, str(write.request), write.position, write.token,
                    not case.state.is_written(group, slot),
                )  # fmt: skip
                victim = self._victim(case, step.step, place, other)
                if victim is not None:
                    row = next(r for r in step.live() if r.request == write.request)
                    self._announced[step.step, group, slot] = self._report(
                        case, place, victim, row.culprit("slots"), row.build.seq, step.step
                    )
                    break

    def _written(self, envelope: Envelope, event: SlotsWritten, case: Case) -> None:
        group = event.group or 0
        size = case.state.pool(group).block_size
        opened = case.step_rows(envelope.step)
        tokens = event.tokens or (None,) * len(event.slots)
        for request, position, token, slot in zip(
            event.requests, event.positions, tokens, event.slots, strict=False
        ):
            if slot < 0 or request is None or size < 1:
                continue
            if opened is not None and (group, slot) in opened.mapped:
                self._carried_out(envelope, group, slot, request)
                continue
            other = self._writers.setdefault((envelope.step, group, slot), request)
            place = Place(
                group, slot // size, slot, request, position, token,
                slot not in self._written_before,
            )  # fmt: skip
            victim = self._victim(case, envelope.step, place, other)
            if victim is not None:
                culprit = culprit_of(envelope, request)
                self._report(case, place, victim, culprit, envelope.seq, envelope.step)

    def _carried_out(self, envelope: Envelope, group: int, slot: int, request: str) -> None:
        announced = self._announced.pop((envelope.step, group, slot), None)
        if announced is not None and announced.culprit.kind != "SlotsWritten":
            announced.culprit = culprit_of(envelope, announced.source or request)
            announced.seq, announced.step = envelope.seq, envelope.step

    def _victim(self, case: Case, step: int, place: Place, other: str) -> str | None:
        """Whom the write wrongs: another writer of the slot in this step, or another holder of
        the block; None for a right write, or one that another fault accounts for."""
        block = case.state.pool(place.group).block(place.block)
        if place.block in case.state.pool(place.group).sentinels:
            return None
        holders = [h.request for h in block.holders]
        if other != place.request:
            victim = other if other in holders else None
        elif len(holders) < 2 or _is_exempt(case, place):
            victim = None
        elif case.has_dropped and any(name not in case.state.requests for name in holders):
            victim = None  # whose fork a holder is, and of how many tokens, was dropped
        else:
            victim = next((name for name in holders if name != place.request), None)
        if victim is None or place.request not in holders:
            return None
        explained = case.cause(
            block_subject(place.group, place.block, block.generation),
            ("address", place.group, step, place.request),
            ("address", place.group, step, other),
            ("row", place.group, place.request, step),
            ("row", place.group, other, step),
            *self._shares(case, place, victim),
        )
        if explained is not None:
            name = exclusive_subject(place.group, place.block, block.generation)
            case.causes.setdefault(name, explained)
            return None
        return victim

    def _shares(self, case: Case, place: Place, victim: str) -> list[Subject]:
        """How the victim came by the block: by a wrong share, this is no fault of the writer."""
        holds = (
            case.hold(place.group, victim, index)
            for index in case.held_indices(place.group, victim, place.block)
        )
        return [
            ("share", place.group, victim, hold.at, hold.block, hold.generation)
            for hold in holds
            if hold is not None
        ]

    def _report(
        self, case: Case, place: Place, victim: str, culprit: Culprit, seq: int, step: int
    ) -> Violation:
        generation = case.state.pool(place.group).block(place.block).generation
        violation = Violation(
            check=self.slug,
            fault_class=self.fault_class,
            variant="written-in-place",
            culprit=culprit,
            seq=seq,
            step=step,
            explanation=(
                f"{place.request} wrote slot {place.slot} of block {place.block}, "
                f"which {victim} uses too"
            ),
            block=place.block,
            slot=place.slot,
            victim=victim,
            source=place.request,
        )
        return case.report(violation, exclusive_subject(place.group, place.block, generation))


def _is_exempt(case: Case, place: Place) -> bool:
    return place.is_first and (_is_keyed_for(case, place) or _is_forked_for(case, place))


def _is_keyed_for(case: Case, place: Place) -> bool:
    """Whether the block is registered, in this generation, with that token in that place."""
    pool = case.state.pool(place.group)
    block, offset = pool.block(place.block), place.slot % pool.block_size
    return any(
        entry.block == place.block
        and entry.generation == block.generation
        and place.token in (None, *entry.tokens[offset : offset + 1])
        for key in block.keys
        for entry in pool.index.get(key, ())
    )


def _is_forked_for(case: Case, place: Place) -> bool:
    """Whether all holders are forks of one another that took this token over: a parent that is
    forked before its own step writes what its children are to read."""
    holders = {h.request for h in case.state.pool(place.group).block(place.block).holders}
    known = [r for name in holders if (r := case.state.requests.get(name)) is not None]
    taken = max((r.taken_over for r in known), default=0)
    return (
        place.position < taken
        and len(known) == len(holders)
        and len({r.tokens[: place.position + 1] for r in known}) == 1
    )
