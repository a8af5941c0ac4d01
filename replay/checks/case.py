"""What the rules share while a trace is judged: the state, holds, open steps, and blame so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    Envelope,
    EpochChanged,
    RequestRevised,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
)
from ..state import Block, State
from ..transitions.blocks import holder_released
from ..transitions.steps import STEPS_KEPT
from ..writes import Epoch, Write
from .base import Culprit, Violation, culprit_of
from .context import ContextComparer
from .rows import Row, StepRows

Subject = tuple[Hashable, ...]

_STEPS_OF_LATE_WRITES = 1_000
"""Writes that are logged later after their step's completion than this are not settled with it."""


class Hold(NamedTuple):
    """A request's hold of a block at one index of its table."""

    block: int
    at: int
    """Logical index in the request's table."""
    generation: int
    culprit: Culprit
    is_share: bool
    key: Hashable
    epoch: Epoch | None
    """In which the request took it; None where that isn't known."""
    replaced: bool
    """Whether it replaced a table entry: a copy on write."""


class Proof(NamedTuple):
    """The leading blocks of a request's table that were proved legal to read, as of `seq`."""

    table: tuple[int, ...]
    seq: int


@dataclass(slots=True)
class OpenStep:
    rows: StepRows
    mapped: dict[tuple[int, int], list[Write]] = field(default_factory=dict)
    """(group, slot) -> what the step's slot mappings write there, in row order."""
    by_token: dict[tuple[int, str, int], int] = field(default_factory=dict)
    """(group, request, position) -> the slot that it is mapped to."""
    holders: dict[tuple[int, int], int] = field(default_factory=dict)
    """(group, block) -> number of holders at dispatch, for the blocks written to."""

    def slot_mapped(self, group: int, request: str, position: int) -> int | None:
        return self.by_token.get((group, request, position))


class Case:
    """Rules read from here and report to here; only `follow` and `report` change it."""

    def __init__(self) -> None:
        self.state = State()
        self.violations: list[Violation] = []
        self.causes: dict[Subject, Violation] = {}
        self.context = ContextComparer()
        self.holds: dict[tuple[int, str], dict[int, Hold]] = {}
        self.held_tables: dict[tuple[int, str], list[int]] = {}
        self.stale_holds: set[tuple[int, str, int]] = set()
        self.held_blocks: dict[tuple[int, str], Counter[int]] = {}
        self.releases: dict[tuple[int, str, int | None, int], Culprit] = {}
        self.last_release: Culprit | None = None
        self.shared_generations: set[tuple[int, int, int]] = set()
        self._handed: dict[tuple[int, int], tuple[int, str, int]] = {}
        """(group, block) -> (generation, request, index) of its last allocation."""
        self.dirty: dict[tuple[int, int], int] = {}
        self.proofs: dict[tuple[int, str], Proof] = {}
        self.open_steps: dict[int, OpenStep] = {}
        """Dispatched and not completed."""
        self.closed_steps: dict[int, OpenStep] = {}
        """The last few that completed: their writes may be logged afterwards."""
        self.pending: dict[tuple[int, int], list[Write]] = {}
        """Mapped slots whose `SlotsWritten` has not been seen yet."""
        self.written_steps: set[int] = set()
        self.completed_through = 0
        self.prior = Block()
        """The block of the present event as it was before it."""
        self.has_dropped = False
        self.registrations = 0
        self.allocations = 0

    # Blame.

    def report(self, violation: Violation, *subjects: Subject) -> Violation:
        """Report, unless one of the subjects has a violation already; returns the one that counts.

        A subject is what broke: a block's generation, a table entry, a share. Whatever follows
        from a reported violation finds it there as its cause.
        """
        for subject in subjects:
            if subject in self.causes:
                known = self.causes[subject]
                break
        else:
            known = violation
            self.violations.append(violation)
        for subject in subjects:
            self.causes.setdefault(subject, known)
        return known

    def cause(self, *subjects: Subject) -> Violation | None:
        """The first of the subjects that has a violation."""
        for subject in subjects:
            found = self.causes.get(subject)
            if found is not None:
                return found
        return None

    # Holds.

    def hold(self, group: int, request: str, index: int) -> Hold | None:
        """The request's hold at an index, if it is of the block's present generation."""
        hold = self.holds.get((group, request), {}).get(index)
        if hold is None or (group, request, index) in self.stale_holds:
            return None
        return hold

    def stale_hold(self, group: int, request: str, index: int) -> Hold | None:
        """A hold that the request never gave up, of a block that was handed out since."""
        if (group, request, index) not in self.stale_holds:
            return None
        return self.holds.get((group, request), {}).get(index)

    def held_indices(self, group: int, request: str, block: int) -> list[int]:
        holds = self.holds.get((group, request), {})
        return [i for i, h in holds.items() if h.block == block]

    def held_end(self, group: int, request: str) -> int:
        """One past the last table index at which the request holds a block."""
        table = self.held_tables.get((group, request), [])
        return max((index + 1 for index, block in enumerate(table) if block >= 0), default=0)

    def is_holder(self, group: int, request: str, block: int) -> bool:
        return any(h.request == request for h in self.state.pool(group).block(block).holders)

    def was_handed(self, group: int, block: int, generation: int, request: str, index: int) -> bool:
        """Whether that generation of the block is the request's at that index."""
        hold = self.hold(group, request, index)
        return self._handed.get((group, block)) == (generation, request, index) or (
            hold is not None and (hold.block, hold.generation) == (block, generation)
        )

    def has_stale_holders(self, group: int, block: int) -> bool:
        """Whether somebody never gave the block up from before it was last handed out."""
        return any(
            name == group
            and self.holds[group, request][index].block == block
            and self.is_judged(request)
            for name, request, index in self.stale_holds
        )

    def kept_release(self, group: int, request: str, index: int, block: int) -> Culprit | None:
        """The last release of that block by that request at that index."""
        return self.releases.get((group, request, index, block)) or self.releases.get(
            (group, request, None, block)
        )

    def is_judged(self, request: str | None) -> bool:
        """Rows of a finished request aren't, nor those of one that was never introduced."""
        known = self.state.requests.get(request) if request is not None else None
        return known is not None and not known.is_finished

    def in_flight(self) -> Iterator[StepRows]:
        return (step.rows for step in self.open_steps.values())

    def flies(self, request: str) -> bool:
        """Whether a dispatched step that has not completed has a row of the request."""
        return any(row.request == request for step in self.in_flight() for row in step.rows)

    def step_rows(self, step: int) -> OpenStep | None:
        return self.open_steps.get(step) or self.closed_steps.get(step)

    def holders_when_written(self, group: int, block: int, slot: int, step: int) -> int:
        """Holders of a block when the step that wrote the slot was dispatched, or now."""
        opened = self.step_rows(step)
        if opened is not None and (group, slot) in opened.mapped:
            return opened.holders[group, block]
        return len(self.state.pool(group).block(block).holders)

    # Contents.

    def contents(self, group: int, slot: int) -> list[Write]:
        """What the slot may hold when it is read now: the last logged write, or what dispatched
        steps write there and have not logged yet."""
        pending = self.pending.get((group, slot))
        if pending:
            return pending
        write = self.state.writer(group, slot)
        return [] if write is None else [write]

    def proved_blocks(self, row: Row) -> int:
        """How many leading blocks of the row need no second look."""
        if row.request is None:
            return 0
        proof = self.proofs.get((row.group, row.request))
        if proof is None or row.table[: len(proof.table)] != proof.table:
            return 0
        for count, block in enumerate(proof.table):
            if self.dirty.get((row.group, block), -1) > proof.seq:
                return count
        return len(proof.table)

    # Following the events.

    def look_ahead(self, envelope: Envelope) -> None:
        """Before the fold: keep what the event is about to change."""
        event = envelope.event
        if isinstance(event, BlockReleased):
            self._follow_release(envelope, event)
        block = getattr(event, "block", None)
        if isinstance(block, int):
            self.prior = self.state.pool(getattr(event, "group", None)).block(block)

    def follow(self, envelope: Envelope) -> None:
        """After the fold."""
        event = envelope.event
        match event:
            case BlockAllocated() | BlockShared():
                self._follow_hold(envelope, event)
            case BlockCopied():
                self.dirty[event.group or 0, event.destination] = envelope.seq
                self._follow_copy(envelope, event)
            case BlockScrubbed():
                self.dirty[event.group or 0, event.block] = envelope.seq
            case SlotsWritten():
                self._follow_writes(envelope, event)
            case StepCompleted():
                self._follow_completion(envelope)
            case BlockRegistered():
                self.registrations += 1
            case RequestRevised():
                for key in [k for k in self.proofs if k[1] == event.request]:
                    del self.proofs[key]
            case EpochChanged() if event.what == "pool":
                self.proofs.clear()
                self.pending.clear()
            case SpanDropped():
                self._forget()
                self._take_up_state()
            case _:
                pass

    def open(self, step: StepRows) -> None:
        """A step is dispatched: it writes its slot mappings, until the writes are logged."""
        opened = self.open_steps[step.step] = OpenStep(step)
        for row in step.rows:
            if self.state.pool(row.group).block_size > 0:
                self._map(opened, row)
        self.pending.update(opened.mapped)

    def reopen(self, step: StepRows, *, is_written: bool) -> None:
        """A step that is under way where a ring begins."""
        self.open(step)
        if is_written:
            self._drop_pending(step.step)

    def _map(self, opened: OpenStep, row: Row) -> None:
        state, group, request = self.state, row.group, row.request
        pool, seq, step = state.pool(group), opened.rows.seq, opened.rows.step
        known = state.requests.get(request) if request is not None else None
        revision, epoch = known.revision if known else 0, state.epoch_of(request)
        event, number, generation = row.build.event, -1, 0
        first = row.computed - row.writes.start
        for at in row.writes:
            slot = event.slot_mapping[at] if at < len(event.slot_mapping) else -1
            if slot < 0:
                continue
            position = first + at
            token = event.tokens[at] if event.tokens and at < len(event.tokens) else None
            if slot // pool.block_size != number:
                number = slot // pool.block_size
                block = pool.block(number)
                generation = block.generation
                opened.holders[group, number] = len(block.holders)
                self.dirty[group, number] = seq
            write = Write(
                request, revision, position, token, slot, seq, step, "mapped", generation, epoch
            )
            opened.mapped.setdefault((group, slot), []).append(write)
            if request is not None:
                opened.by_token[group, request, position] = slot

    def _follow_hold(self, envelope: Envelope, event: BlockAllocated | BlockShared) -> None:
        self.allocations += 1
        group = event.group or 0
        block = self.state.pool(group).block(event.block)
        if isinstance(event, BlockAllocated):
            self.dirty[group, event.block] = envelope.seq
            self._handed[group, event.block] = (block.generation, event.request, event.index)
            for holder in self.prior.holders:
                for index in self.held_indices(group, holder.request, event.block):
                    self.stale_holds.add((group, holder.request, index))
        else:
            self.shared_generations.add((group, event.block, block.generation))
        holds = self.holds.setdefault((group, event.request), {})
        self.stale_holds.discard((group, event.request, event.index))
        before = holds.get(event.index)
        holds[event.index] = Hold(
            event.block,
            event.index,
            block.generation,
            culprit_of(envelope),
            isinstance(event, BlockShared),
            event.key if isinstance(event, BlockShared) else None,
            self.state.epoch_of(event.request),
            before is not None and before.block != event.block,
        )
        self._set_held(group, event.request, event.index, event.block)
        self.held_blocks.setdefault((group, event.request), Counter())[event.block] += 1

    def _follow_copy(self, envelope: Envelope, event: BlockCopied) -> None:
        """What a step under way writes into the source is copied too, though not logged yet."""
        group = event.group or 0
        pool = self.state.pool(group)
        generation = pool.block(event.destination).generation
        for offset in range(min(max(event.slots, 0), pool.block_size)):
            slot = event.destination * pool.block_size + offset
            self.pending.pop((group, slot), None)
            source = self.pending.get((group, event.source * pool.block_size + offset))
            if source:
                copied = source[-1]._replace(
                    slot=slot, seq=envelope.seq, step=envelope.step, kind="copy",
                    generation=generation,
                )  # fmt: skip
                self.pending[group, slot] = [copied]

    def _follow_release(self, envelope: Envelope, event: BlockReleased) -> None:
        group = event.group or 0
        self.last_release = culprit_of(envelope)
        self.proofs.pop((group, event.request), None)
        holder = holder_released(self.state.pool(group).block(event.block), event)
        index = event.index if holder is None else holder.table_index
        self.releases[group, event.request, index, event.block] = self.last_release
        hold = self.holds.get((group, event.request), {}).get(index) if index is not None else None
        if index is not None and hold is not None and hold.block == event.block:
            del self.holds[group, event.request][index]
            self.stale_holds.discard((group, event.request, index))
            self._set_held(group, event.request, index, -1)
        counter = self.held_blocks.get((group, event.request))
        if counter and counter[event.block] > 0:
            counter[event.block] -= 1

    def _set_held(self, group: int, request: str, index: int, block: int) -> None:
        if not 0 <= index < 1 << 22:
            return
        table = self.held_tables.setdefault((group, request), [])
        table.extend([-1] * (index + 1 - len(table)))
        table[index] = block

    def _follow_writes(self, envelope: Envelope, event: SlotsWritten) -> None:
        group = event.group or 0
        size = self.state.pool(group).block_size
        if size < 1:
            return
        for slot in event.slots:
            if slot >= 0:
                self.dirty[group, slot // size] = envelope.seq
                pending = self.pending.get((group, slot))
                if pending and pending[0].step <= envelope.step:
                    del self.pending[group, slot]
        if event.write not in ("copy", "transfer"):
            self.written_steps.add(envelope.step)
            self._settle(envelope.step)

    def _follow_completion(self, envelope: Envelope) -> None:
        self.completed_through = max(self.completed_through, envelope.step)
        for number in [n for n in self.open_steps if n <= envelope.step]:
            self._settle(number)
            self.closed_steps[number] = self.open_steps.pop(number)
        for number in [n for n in self.closed_steps if n <= envelope.step - STEPS_KEPT]:
            del self.closed_steps[number]

    def _settle(self, step: int) -> None:
        """Once a completed step logged its writes, what it didn't log was not written."""
        if step <= self.completed_through and step in self.written_steps:
            self._drop_pending(step)

    def _drop_pending(self, step: int) -> None:
        stale = [
            slot
            for slot, (write, *_) in self.pending.items()
            if write.step == step and write.kind != "copy"
        ]
        for slot in stale:
            del self.pending[slot]

    def take_hold(self, group: int, request: str, hold: Hold) -> None:
        """A hold from before the first event."""
        self.holds.setdefault((group, request), {})[hold.at] = hold
        self._set_held(group, request, hold.at, hold.block)
        self.held_blocks.setdefault((group, request), Counter())[hold.block] += 1

    def _take_up_state(self) -> None:
        """Where a ring begins the state is known; in another gap nothing is."""
        pools, steps = self.state.pools.values(), self.state.steps
        is_lost = not self.state.is_restored or any(not p.unlisted.is_known for p in pools)
        self.has_dropped = self.context.has_dropped = self.has_dropped or is_lost
        self.registrations += sum(len(pool.index) for pool in pools)
        self.allocations += sum(block.generation > 0 for p in pools for block in p.blocks.values())
        self.written_steps |= {n for n, step in steps.items() if step.written_seq is not None}
        completed = (n for n, step in steps.items() if step.completed_seq is not None)
        self.completed_through = max(self.completed_through, *completed, 0)

    def forget(self, state: State) -> None:
        """Go on from a state that is the same but for what can't matter any more, and let go of
        all else that was about it. Whatever a request still holds by mistake is kept."""
        self.state = state
        stale = {request for _, request, _ in self.stale_holds}
        names = {*state.requests, *stale}
        for by_request in (self.holds, self.held_tables, self.held_blocks, self.proofs):
            for name in [name for name in by_request if name[1] not in names]:
                del by_request[name]
        for release in [release for release in self.releases if release[1] not in names]:
            del self.releases[release]
        self.shared_generations = {
            (group, block, generation)
            for group, block, generation in self.shared_generations
            if generation >= state.pool(group).block(block).generation - 1
        }
        past = self.completed_through - _STEPS_OF_LATE_WRITES
        self.written_steps = {step for step in self.written_steps if step > past}
        self.context.forget(but=names)

    def _forget(self) -> None:
        for known in (
            self.holds, self.held_tables, self.held_blocks, self.releases, self.dirty,
            self.proofs, self.open_steps, self.closed_steps, self.pending, self.causes,
        ):  # fmt: skip
            known.clear()
        self.stale_holds.clear()
        self.shared_generations.clear()
        self._handed.clear()
