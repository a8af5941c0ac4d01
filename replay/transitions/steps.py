"""Transitions of steps and transfers: what was built, dispatched, written and completed."""

from __future__ import annotations

from typing import Any

from ...recorder.events import (
    Envelope,
    InputsBuilt,
    MaskBuilt,
    SlotsWritten,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TransferFinished,
    TransferStarted,
)
from ..state import Build, BuiltMask, Pool, State, StepState, Transfer
from ..writes import Write

STEPS_KEPT = 8
"""Completed steps that stay in the state: late samples and writes still refer to them."""


def step_scheduled(state: State, envelope: Envelope, event: StepScheduled) -> None:
    step = state.steps.get(envelope.step, StepState())
    state.steps[envelope.step] = step._replace(scheduled=event, scheduled_seq=envelope.seq)
    for name, computed in zip(event.requests, event.computed, strict=False):
        known = state.requests.get(name)
        if known is not None and not known.is_finished:
            state.requests[name] = known._replace(computed=computed, status="running")


def inputs_built(state: State, envelope: Envelope, event: InputsBuilt) -> None:
    step = state.steps.get(envelope.step, StepState())
    build = Build(envelope.seq, event)
    state.steps[envelope.step] = step._replace(builds=(*step.builds, build))


def mask_built(state: State, envelope: Envelope, event: MaskBuilt) -> None:
    step = state.steps.get(envelope.step, StepState())
    mask = BuiltMask(envelope.seq, event)
    state.steps[envelope.step] = step._replace(masks=(*step.masks, mask))


def step_dispatched(state: State, envelope: Envelope, event: StepDispatched) -> None:
    step = state.steps.get(envelope.step, StepState())
    state.steps[envelope.step] = step._replace(dispatched_seq=envelope.seq)


def slots_written(state: State, envelope: Envelope, event: SlotsWritten) -> None:
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
            write = _as_stored(state, event.group or 0, write, number, slot % size)
        pool.slots[slot] = state.log.append(write)
        if slot in pool.awaited:
            _carry_out_copies(state, pool, write)
    if event.write not in ("copy", "transfer"):
        step = state.steps.get(envelope.step, StepState())
        if step.written_seq is None:
            state.steps[envelope.step] = step._replace(written_seq=envelope.seq)


def _carry_out_copies(state: State, pool: Pool, write: Write) -> None:
    """The copies that waited for this write; one of another generation or step is not theirs."""
    for due in pool.awaited.pop(write.slot):
        is_present = pool.block(due.slot // pool.block_size).generation == due.generation
        if is_present and write.generation == due.source_generation and write.step < due.step:
            pool.slots[due.slot] = state.log.append(
                write._replace(
                    slot=due.slot,
                    seq=due.seq,
                    step=due.step,
                    kind="copy",
                    generation=due.generation,
                )
            )


def _as_stored(state: State, group: int, write: Write, block: int, offset: int) -> Write:
    """A loaded slot counts as the storing request's, and holds what was stored under its key."""
    for transfer in state.transfers.values():
        event = transfer.event
        if event.direction != "load" or (event.group or 0) != group:
            continue
        for number, key in zip(event.blocks, event.keys, strict=False):
            stored = state.stored_under(group, key) or ()
            origin = stored[offset] if number == block and offset < len(stored) else None
            if origin is not None:
                return write._replace(
                    request=origin.request,
                    revision=origin.revision,
                    position=origin.position,
                    token=origin.token,
                    epoch=origin.epoch,
                )
    return write


def step_completed(state: State, envelope: Envelope, event: StepCompleted) -> None:
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


def transfer_started(state: State, envelope: Envelope, event: TransferStarted) -> None:
    is_store = event.direction == "store"
    contents = tuple(_present(state, event.group, b) for b in event.blocks) if is_store else ()
    state.transfers[event.transfer] = Transfer(envelope.seq, event, contents)


def _present(state: State, group: int | None, block: int) -> tuple[Write | None, ...]:
    """What a block holds, slot by slot; None for what was not written in its generation."""
    pool = state.pool(group)
    generation = pool.block(block).generation
    writes = (state.writer(group, slot) for slot in pool.slots_of(block))
    return tuple(w if w and w.generation == generation else None for w in writes)


def transfer_finished(state: State, envelope: Envelope, event: TransferFinished) -> None:
    """What failed or was cancelled leaves the other tier as it was."""
    transfer = state.transfers.pop(event.transfer, None)
    if transfer is None or event.status != "ok":
        return
    started = transfer.event
    for key, contents in zip(started.keys, transfer.contents, strict=False):
        state.stored[started.group or 0, key] = contents
