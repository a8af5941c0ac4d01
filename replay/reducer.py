"""The only meaning of an event: `apply(state, envelope)` advances a state by one event.

The fold is total. A count of -1, a block twice in the free queue, a release by nobody, events out
of order or for things never heard of: all of it folds, since a broken engine's state is what the
events must reproduce. What is wrong with it, the checks say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    BlockUnregistered,
    DecisionMade,
    DraftVerified,
    Envelope,
    EpochChanged,
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    RequestRevised,
    RunEnded,
    RunStarted,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TokensSampled,
    TransferFinished,
    TransferStarted,
)
from .requests import RequestState
from .state import (
    Block,
    Build,
    BuiltMask,
    Holder,
    IndexEntry,
    Pool,
    State,
    StepState,
    Transfer,
    fresh_pool,
)
from .writes import Write

STEPS_KEPT = 8
"""Completed steps that stay in the state: late samples and writes still refer to them."""


def apply(state: State, envelope: Envelope) -> State:
    """Advance `state` in place by one event, and return it. Never raises on a decodable event."""
    state.seq, state.step = envelope.seq, max(state.step, envelope.step)
    transition = _TRANSITIONS.get(type(envelope.event))
    if transition is not None:
        transition(state, envelope, envelope.event)
    return state


def fold(envelopes: Iterable[Envelope], state: State | None = None) -> State:
    """The state after all of the events, from the given one (which is advanced) or from none."""
    state = state or State()
    for envelope in envelopes:
        apply(state, envelope)
    return state


# The run.


def _run_started(state: State, envelope: Envelope, event: RunStarted) -> None:
    state.header = event
    state.pools = {group: fresh_pool(event) for group in range(max(len(event.groups), 1))}


def _run_ended(state: State, envelope: Envelope, event: RunEnded) -> None:
    state.ended = event


def _epoch_changed(state: State, envelope: Envelope, event: EpochChanged) -> None:
    if event.what == "weights":
        state.weights = event.epoch
    elif event.what == "adapter" and event.adapter is not None:
        state.adapters[event.adapter] = event.epoch
    elif event.what == "pool":
        state.pool_epoch = event.epoch
        for pool in state.pools.values():
            pool.slots.clear()


def _span_dropped(state: State, envelope: Envelope, event: SpanDropped) -> None:
    """Nothing is known any more, until it is allocated or added anew."""
    for group, pool in state.pools.items():
        state.pools[group] = Pool(
            pool.block_size, pool.sentinels, unlisted=Block(is_free=False, is_known=False)
        )
    state.requests.clear()
    state.steps.clear()
    state.transfers.clear()
    state.stored.clear()


# Requests.


def _request_added(state: State, envelope: Envelope, event: RequestAdded) -> None:
    state.requests[event.request] = RequestState(event, event.prompt_tokens)


def _request_forked(state: State, envelope: Envelope, event: RequestForked) -> None:
    child, parent = state.requests.get(event.request), state.requests.get(event.parent)
    if child is None:
        return
    taken = max(event.tokens, 0)
    tokens = child.tokens
    if parent is not None and len(tokens) < taken:
        tokens += parent.tokens[len(tokens) : taken]
    state.requests[event.request] = child._replace(tokens=tokens, computed=taken, taken_over=taken)


def _request_preempted(state: State, envelope: Envelope, event: RequestPreempted) -> None:
    known = state.requests.get(event.request)
    if known is not None and not known.is_finished:
        state.requests[event.request] = known._replace(
            status="preempted", preemptions=known.preemptions + 1, computed=0
        )


def _request_finished(state: State, envelope: Envelope, event: RequestFinished) -> None:
    known = state.requests.get(event.request)
    if known is not None and not known.is_finished:
        state.requests[event.request] = known._replace(status="finished", finished_seq=envelope.seq)


def _request_revised(state: State, envelope: Envelope, event: RequestRevised) -> None:
    """Keys over dropped tokens are void, in blocks that the request alone holds."""
    known = state.requests.get(event.request)
    if known is None:
        return
    kept = max(event.tokens_kept, 0)
    state.requests[event.request] = known._replace(
        tokens=known.tokens[:kept] + (event.tokens or ()),
        computed=min(known.computed, kept),
        former=(*known.former, known.tokens),
    )
    for pool in state.pools.values():
        for index, number in enumerate(pool.table(event.request)):
            if number is None or (index + 1) * pool.block_size <= kept:
                continue
            block = pool.block(number)
            if all(holder.request == event.request for holder in block.holders):
                for key in block.keys:
                    _drop_entry(pool, key, number)
                pool.blocks[number] = block._replace(keys=())


def _tokens_sampled(state: State, envelope: Envelope, event: TokensSampled) -> None:
    for name, token, position in zip(event.requests, event.tokens, event.positions, strict=False):
        known = state.requests.get(name)
        if known is None:
            continue
        if not 0 <= position < len(known.tokens):
            state.requests[name] = known._replace(tokens=(*known.tokens, token))
        elif known.tokens[position] != token:
            tokens = (*known.tokens[:position], token, *known.tokens[position + 1 :])
            state.requests[name] = known._replace(
                tokens=tokens, former=(*known.former, known.tokens)
            )


# Blocks.


def _block_allocated(state: State, envelope: Envelope, event: BlockAllocated) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    pool.blocks[event.block] = Block(
        generation=block.generation + 1,
        ref_count=1,
        holders=(Holder(event.request, event.index),),
        is_free=False,
    )
    _leave_queue(pool, event.block)
    replaced = _put(pool, event.request, event.index, event.block)
    pool.unfreed.pop(event.block, None)
    pool.uncopied.pop(event.block, None)
    if replaced is not None and replaced != event.block:
        pool.uncopied[event.block] = envelope.seq


def _block_shared(state: State, envelope: Envelope, event: BlockShared) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    pool.blocks[event.block] = block._replace(
        ref_count=event.ref_count,
        holders=(*block.holders, Holder(event.request, event.index)),
        is_free=False,
    )
    if event.ref_count == 1:
        _leave_queue(pool, event.block)
    _put(pool, event.request, event.index, event.block)
    pool.unfreed.pop(event.block, None)


def _block_released(state: State, envelope: Envelope, event: BlockReleased) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    holder = holder_released(block, event)
    holders = list(block.holders)
    if holder is not None:
        holders.remove(holder)
    pool.blocks[event.block] = block._replace(ref_count=event.ref_count, holders=tuple(holders))
    index = event.index if holder is None else holder.table_index
    if index is not None:
        _clear(pool, event.request, index, event.block)
    if not holders and not block.is_free:
        pool.unfreed.setdefault(event.block, envelope.seq)


def _block_freed(state: State, envelope: Envelope, event: BlockFreed) -> None:
    pool = state.pool(event.group)
    pool.blocks[event.block] = pool.block(event.block)._replace(is_free=True)
    pool.free.append(event.block)
    pool.unfreed.pop(event.block, None)


def _block_registered(state: State, envelope: Envelope, event: BlockRegistered) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    entry = IndexEntry(
        event.block, block.generation, envelope.seq, event.request, event.parent_key, event.tokens
    )
    others = tuple(e for e in pool.index.get(event.key, ()) if e.block != event.block)
    pool.index[event.key] = (*others, entry)
    keys = tuple(key for key in block.keys if key != event.key)
    pool.blocks[event.block] = block._replace(keys=(*keys, event.key))


def _block_unregistered(state: State, envelope: Envelope, event: BlockUnregistered) -> None:
    pool = state.pool(event.group)
    block = pool.block(event.block)
    _drop_entry(pool, event.key, event.block)
    if event.key in block.keys:
        keys = tuple(key for key in block.keys if key != event.key)
        pool.blocks[event.block] = block._replace(keys=keys)


def _block_copied(state: State, envelope: Envelope, event: BlockCopied) -> None:
    """The copied slots keep their first writer; what was never written stays unwritten."""
    pool = state.pool(event.group)
    source, destination = pool.block(event.source), pool.block(event.destination)
    pool.uncopied.pop(event.destination, None)
    for offset in range(min(max(event.slots, 0), pool.block_size)):
        slot = event.destination * pool.block_size + offset
        write = state.writer(event.group, event.source * pool.block_size + offset)
        if write is None:
            pool.slots.pop(slot, None)
            continue
        is_present = write.generation == source.generation
        pool.slots[slot] = state.log.append(
            write._replace(
                slot=slot,
                seq=envelope.seq,
                step=envelope.step,
                kind="copy",
                generation=destination.generation if is_present else None,
            )
        )


def _block_scrubbed(state: State, envelope: Envelope, event: BlockScrubbed) -> None:
    pool = state.pool()
    for slot in pool.slots_of(event.block):
        pool.slots.pop(slot, None)


def _decision_made(state: State, envelope: Envelope, event: DecisionMade) -> None:
    """A trim that keeps a block leaves it in the table although it is released next."""
    if event.about != "trim" or event.request is None or not isinstance(event.choice, Mapping):
        return
    index, kept = event.choice.get("index"), event.choice.get("kept")
    if isinstance(index, int) and isinstance(kept, int):
        pool = state.pool()
        _put(pool, event.request, index, kept)
        pool.kept[event.request, index] = kept


# Steps.


def _step_scheduled(state: State, envelope: Envelope, event: StepScheduled) -> None:
    step = state.steps.get(envelope.step, StepState())
    state.steps[envelope.step] = step._replace(scheduled=event, scheduled_seq=envelope.seq)
    for name, computed in zip(event.requests, event.computed, strict=False):
        known = state.requests.get(name)
        if known is not None and not known.is_finished:
            state.requests[name] = known._replace(computed=computed, status="running")


def _inputs_built(state: State, envelope: Envelope, event: InputsBuilt) -> None:
    step = state.steps.get(envelope.step, StepState())
    build = Build(envelope.seq, event)
    state.steps[envelope.step] = step._replace(builds=(*step.builds, build))


def _mask_built(state: State, envelope: Envelope, event: MaskBuilt) -> None:
    step = state.steps.get(envelope.step, StepState())
    mask = BuiltMask(envelope.seq, event)
    state.steps[envelope.step] = step._replace(masks=(*step.masks, mask))


def _step_dispatched(state: State, envelope: Envelope, event: StepDispatched) -> None:
    step = state.steps.get(envelope.step, StepState())
    state.steps[envelope.step] = step._replace(dispatched_seq=envelope.seq)


def _slots_written(state: State, envelope: Envelope, event: SlotsWritten) -> None:
    pool = state.pool(event.group)
    size = pool.block_size
    generations: dict[int, int] = {}
    writers: dict[str | None, tuple[int, Any]] = {}
    tokens = event.tokens if event.tokens is not None else (None,) * len(event.slots)
    for name, position, token, slot in zip(
        event.requests, event.positions, tokens, event.slots, strict=False
    ):
        if slot < 0 or size < 1:
            continue
        number = slot // size
        if number not in generations:
            generations[number] = pool.block(number).generation
        if name not in writers:
            known = state.requests.get(name) if name is not None else None
            writers[name] = (known.revision if known else 0, state.epoch_of(name))
        revision, epoch = writers[name]
        write = Write(
            name, revision, position, token, slot, envelope.seq, envelope.step, event.write,
            generations[number], epoch,
        )  # fmt: skip
        if event.write == "transfer":
            write = _as_stored(state, write, number, slot % size)
        pool.slots[slot] = state.log.append(write)
    if event.write not in ("copy", "transfer"):
        step = state.steps.get(envelope.step, StepState())
        if step.written_seq is None:
            state.steps[envelope.step] = step._replace(written_seq=envelope.seq)


def _as_stored(state: State, write: Write, block: int, offset: int) -> Write:
    """A loaded slot counts as the storing request's."""
    for transfer in state.transfers.values():
        event = transfer.event
        if event.direction != "load":
            continue
        for number, key in zip(event.blocks, event.keys, strict=False):
            stored = state.stored.get(key, ())
            origin = stored[offset] if number == block and offset < len(stored) else None
            if origin is not None:
                return write._replace(
                    request=origin.request, revision=origin.revision, epoch=origin.epoch
                )
    return write


def _step_completed(state: State, envelope: Envelope, event: StepCompleted) -> None:
    """The completion of a step implies that of every lower one."""
    state.steps.setdefault(envelope.step, StepState())
    for number, step in tuple(state.steps.items()):
        if number > envelope.step:
            continue
        if step.completed_seq is None:
            state.steps[number] = step._replace(completed_seq=envelope.seq)
            _advance_computed(state, step.scheduled)
        if number <= envelope.step - STEPS_KEPT:
            del state.steps[number]


def _advance_computed(state: State, event: StepScheduled | None) -> None:
    if event is None:
        return
    for name, computed, count in zip(event.requests, event.computed, event.scheduled, strict=False):
        known = state.requests.get(name)
        if known is not None and known.status == "running":
            state.requests[name] = known._replace(computed=max(known.computed, computed + count))


def _draft_verified(state: State, envelope: Envelope, event: DraftVerified) -> None:
    known = state.requests.get(event.request)
    if known is not None:
        state.requests[event.request] = known._replace(computed=event.first + event.accepted)


# Transfers.


def _transfer_started(state: State, envelope: Envelope, event: TransferStarted) -> None:
    state.transfers[event.transfer] = Transfer(envelope.seq, event)
    if event.direction != "store":
        return
    pool = state.pool()
    for number, key in zip(event.blocks, event.keys, strict=False):
        generation = pool.block(number).generation
        writes = (state.writer(0, slot) for slot in pool.slots_of(number))
        state.stored[key] = tuple(w if w and w.generation == generation else None for w in writes)


def _transfer_finished(state: State, envelope: Envelope, event: TransferFinished) -> None:
    state.transfers.pop(event.transfer, None)


# Small steps that several transitions share.


def holder_released(block: Block, event: BlockReleased) -> Holder | None:
    """Which hold a release gives up; None when the request has none there."""
    for holder in block.holders:
        if holder.request == event.request and event.index in (None, holder.table_index):
            return holder
    return None


def _put(pool: Pool, request: str, index: int, block: int) -> int | None:
    """Set a table entry; returns the block that it replaces."""
    pool.kept.pop((request, index), None)
    if index < 0 or index > _LONGEST_TABLE:
        return None
    table = pool.table(request)
    before = table[index] if index < len(table) else None
    padded = table + (None,) * (index - len(table))
    pool.tables[request] = (*padded[:index], block, *padded[index + 1 :])
    return before


def _clear(pool: Pool, request: str, index: int, block: int) -> None:
    table = pool.table(request)
    kept = pool.kept.pop((request, index), None)
    if kept is None and 0 <= index < len(table) and table[index] == block:
        pool.tables[request] = (*table[:index], None, *table[index + 1 :])


_LONGEST_TABLE = 1 << 22
"""An index past this is nonsense, and not worth a table of that length."""


def _leave_queue(pool: Pool, block: int) -> None:
    if block in pool.free:
        pool.free.remove(block)


def _drop_entry(pool: Pool, key: Any, block: int) -> None:
    rest = tuple(entry for entry in pool.index.get(key, ()) if entry.block != block)
    if rest:
        pool.index[key] = rest
    else:
        pool.index.pop(key, None)


_TRANSITIONS: Mapping[type[Event], Callable[[State, Envelope, Any], None]] = {
    RunStarted: _run_started,
    RunEnded: _run_ended,
    EpochChanged: _epoch_changed,
    SpanDropped: _span_dropped,
    RequestAdded: _request_added,
    RequestForked: _request_forked,
    RequestPreempted: _request_preempted,
    RequestFinished: _request_finished,
    RequestRevised: _request_revised,
    TokensSampled: _tokens_sampled,
    BlockAllocated: _block_allocated,
    BlockShared: _block_shared,
    BlockReleased: _block_released,
    BlockFreed: _block_freed,
    BlockRegistered: _block_registered,
    BlockUnregistered: _block_unregistered,
    BlockCopied: _block_copied,
    BlockScrubbed: _block_scrubbed,
    DecisionMade: _decision_made,
    StepScheduled: _step_scheduled,
    InputsBuilt: _inputs_built,
    MaskBuilt: _mask_built,
    StepDispatched: _step_dispatched,
    SlotsWritten: _slots_written,
    StepCompleted: _step_completed,
    DraftVerified: _draft_verified,
    TransferStarted: _transfer_started,
    TransferFinished: _transfer_finished,
}
"""Kinds that are not listed say something about the run and change nothing in it."""
