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
from .snapshot import BadSnapshot, load
from .state import Block, Pool, State, fresh_pool
from .transitions.blocks import (
    block_allocated,
    block_copied,
    block_freed,
    block_registered,
    block_released,
    block_scrubbed,
    block_shared,
    block_unregistered,
    decision_made,
)
from .transitions.requests import (
    draft_verified,
    request_added,
    request_finished,
    request_forked,
    request_preempted,
    request_revised,
    tokens_sampled,
)
from .transitions.steps import (
    inputs_built,
    mask_built,
    slots_written,
    step_completed,
    step_dispatched,
    step_scheduled,
    transfer_finished,
    transfer_started,
)


def apply(state: State, envelope: Envelope) -> State:
    """Advance `state` in place by one event, and return it. Never raises on a decodable event."""
    if envelope.rank != state.rank:
        state.turn_to(envelope.rank)
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
            pool.awaited.clear()


def _span_dropped(state: State, envelope: Envelope, event: SpanDropped) -> None:
    """Nothing is known any more, until it is allocated or added anew; unless the event bears the
    state, as where a ring begins."""
    if event.state is not None:
        try:
            state.become(load(event.state), envelope.seq)
            return
        except BadSnapshot:  # of a later kvrewind: then nothing is known, and the checks say why
            pass
    for group, pool in state.pools.items():
        state.pools[group] = Pool(
            pool.block_size, pool.sentinels, unlisted=Block(is_free=False, is_known=False)
        )
    state.requests.clear()
    state.steps.clear()
    state.transfers.clear()
    state.stored.clear()


_TRANSITIONS: Mapping[type[Event], Callable[[State, Envelope, Any], None]] = {
    RunStarted: _run_started,
    RunEnded: _run_ended,
    EpochChanged: _epoch_changed,
    SpanDropped: _span_dropped,
    RequestAdded: request_added,
    RequestForked: request_forked,
    RequestPreempted: request_preempted,
    RequestFinished: request_finished,
    RequestRevised: request_revised,
    TokensSampled: tokens_sampled,
    BlockAllocated: block_allocated,
    BlockShared: block_shared,
    BlockReleased: block_released,
    BlockFreed: block_freed,
    BlockRegistered: block_registered,
    BlockUnregistered: block_unregistered,
    BlockCopied: block_copied,
    BlockScrubbed: block_scrubbed,
    DecisionMade: decision_made,
    StepScheduled: step_scheduled,
    InputsBuilt: inputs_built,
    MaskBuilt: mask_built,
    StepDispatched: step_dispatched,
    SlotsWritten: slots_written,
    StepCompleted: step_completed,
    DraftVerified: draft_verified,
    TransferStarted: transfer_started,
    TransferFinished: transfer_finished,
}
"""Kinds that are not listed say something about the run and change nothing in it."""
