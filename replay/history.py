"""The life of a block or a request, told from the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    Envelope,
    InputsBuilt,
    MaskBuilt,
    RunStarted,
    SlotsWritten,
    StepScheduled,
)
from .reads import slots_read
from .source import EventSource
from .wording import at_positions, counted, phrase, ranges

OF_BLOCKS = (
    "BlockAllocated",
    "BlockShared",
    "BlockReleased",
    "BlockFreed",
    "BlockRegistered",
    "BlockUnregistered",
    "BlockScrubbed",
    "BlockDigested",
)
OF_REQUESTS = (
    "RequestAdded",
    "RequestForked",
    "AbortRequested",
    "RequestPreempted",
    "RequestFinished",
    "RequestRevised",
    "PrefixLookedUp",
    "BlockAllocated",
    "BlockShared",
    "BlockReleased",
)


class Entry(NamedTuple):
    """Something that happened to a block or a request."""

    seq: int
    step: int
    kind: str
    """Of the event."""
    request: str | None
    block: int | None
    generation: int | None
    """Of the block, after the event; None in the life of a request."""
    decision: str | None
    text: str
    """What happened, in words."""

    @property
    def position(self) -> str:
        return f"{self.step}:{self.seq}"


class RowReader(NamedTuple):
    """A row that reads slots of a block."""

    seq: int
    """Of the `InputsBuilt`."""
    step: int
    row: int
    request: str | None
    slots: tuple[int, ...]
    lists_block: bool
    """The row's own table has the block; else only a mask shows it."""

    @property
    def position(self) -> str:
        return f"{self.step}:{self.seq}"


def life_of_block(
    source: EventSource, block: int, group: int | None = None, stop_seq: int | None = None
) -> list[Entry]:
    """All that happened to a block before `stop_seq`; writes are one entry per step and writer.

    Generations count from 0 (never handed out); each allocation adds one.
    """
    size = block_size_of(source)
    kinds = (*OF_BLOCKS, SlotsWritten.__name__, BlockCopied.__name__)
    touching = source.touching_block(block, group=group or 0, kinds=kinds, stop_seq=stop_seq)
    entries: list[Entry] = []
    generation = 0
    for envelope in touching:
        generation += isinstance(envelope.event, BlockAllocated)
        entries.extend(_entries_of_block(envelope, block, generation, size))
    return entries


def allocations_of_block(
    source: EventSource, block: int, group: int | None = None, stop_seq: int | None = None
) -> list[Entry]:
    """As `life_of_block`, without what was written: from an index, not by reading the trace."""
    entries: list[Entry] = []
    generation = 0
    for envelope in source.find(block=block, kinds=OF_BLOCKS, stop_seq=stop_seq):
        if (getattr(envelope.event, "group", None) or 0) != (group or 0):
            continue
        generation += isinstance(envelope.event, BlockAllocated)
        entries.extend(_entries_of_block(envelope, block, generation, 0))
    return entries


def _entries_of_block(
    envelope: Envelope, block: int, generation: int, size: int
) -> Iterator[Entry]:
    event = envelope.event
    if isinstance(event, SlotsWritten):
        yield from _writes(envelope, event, block, generation, size)
    elif not isinstance(event, BlockCopied) or block in (event.source, event.destination):
        request = getattr(event, "request", None)
        yield _entry(envelope, request, block, generation, phrase(event))


def _writes(
    envelope: Envelope, event: SlotsWritten, block: int, generation: int, size: int
) -> Iterator[Entry]:
    positions: dict[str | None, list[int]] = {}
    for name, position, slot in zip(event.requests, event.positions, event.slots, strict=False):
        if size and slot >= 0 and slot // size == block:
            positions.setdefault(name, []).append(position)
    for name, written in positions.items():
        who = "a pad row" if name is None else name
        what = f"{who} wrote {counted(len(written), 'slot')}, {at_positions(written)}"
        yield _entry(envelope, name, block, generation, f"{what} ({event.write})")


def _entry(
    envelope: Envelope, request: str | None, block: int | None, generation: int | None, text: str
) -> Entry:
    return Entry(
        envelope.seq,
        envelope.step,
        envelope.kind,
        request,
        block,
        generation,
        envelope.event.decision,
        text,
    )


def entry_of(envelope: Envelope) -> Entry:
    """A single event as an entry; its block's generation is not looked up."""
    event = envelope.event
    request, block = getattr(event, "request", None), getattr(event, "block", None)
    return _entry(envelope, request, block, None, phrase(event))


# --- requests -------------------------------------------------------------------------------------


def life_of_request(source: EventSource, request: str, stop_seq: int | None = None) -> list[Entry]:
    """All that happened to a request: inputs, blocks, and its steps; runs of decode steps are one
    entry, that of the first."""
    kinds = (*OF_REQUESTS, StepScheduled.__name__)
    entries: list[Entry] = []
    decoded: list[Envelope] = []
    for envelope in source.of_request(request, kinds=kinds, stop_seq=stop_seq):
        event = envelope.event
        if not isinstance(event, StepScheduled):
            entries.extend(_decode_run(decoded, request))
            decoded = []
            block = getattr(event, "block", None)
            text = phrase(event) if block is None else f"block {block} {phrase(event)}"
            entries.append(_entry(envelope, request, block, None, text))
        elif request in event.requests:
            row = event.requests.index(request)
            if event.phases[row] == "decode":
                decoded.append(envelope)
                continue
            entries.extend(_decode_run(decoded, request))
            decoded = []
            first, count = event.computed[row], event.scheduled[row]
            text = f"prefill of {counted(count, 'token')} from position {first}"
            entries.append(_entry(envelope, request, None, None, text))
    entries.extend(_decode_run(decoded, request))
    return entries


def _decode_run(decoded: list[Envelope], request: str) -> Iterator[Entry]:
    if decoded:
        steps = ranges(envelope.step for envelope in decoded)
        noun = "step" if len(decoded) == 1 else "steps"
        yield _entry(decoded[0], request, None, None, f"decoded in {noun} {steps}")


# --- readers --------------------------------------------------------------------------------------


def readers_of(
    source: EventSource,
    block: int,
    start_seq: int = 0,
    stop_seq: int | None = None,
    group: int | None = None,
) -> list[RowReader]:
    """The rows built in start_seq <= seq < stop_seq that read slots of a block: by their table, or
    because a mask shows them."""
    size = block_size_of(source)
    if size < 1:
        return []
    slots = range(block * size, (block + 1) * size)
    found: list[RowReader] = []
    for built, mask in _builds(source, start_seq, stop_seq, group or 0):
        event = built.event
        assert isinstance(event, InputsBuilt)
        for row, name in enumerate(event.requests):
            seen = tuple(s for s in slots_read(event, mask, row, size) if s in slots)
            if seen:
                table = event.block_tables[row] if row < len(event.block_tables) else ()
                found.append(RowReader(built.seq, built.step, row, name, seen, block in table))
    return found


def _builds(
    source: EventSource, start_seq: int, stop_seq: int | None, group: int
) -> Iterator[tuple[Envelope, MaskBuilt | None]]:
    """Each build of a group with the mask that its step got; a mask may lie past `stop_seq`."""
    waiting: dict[int, Envelope] = {}
    for envelope in source.find(
        kinds=[InputsBuilt.__name__, MaskBuilt.__name__], start_seq=start_seq
    ):
        event = envelope.event
        ends = stop_seq is not None and envelope.seq >= stop_seq
        if (getattr(event, "group", None) or 0) == group:
            if isinstance(event, InputsBuilt) and not ends:
                if (before := waiting.pop(envelope.step, None)) is not None:
                    yield before, None
                waiting[envelope.step] = envelope
            elif isinstance(event, MaskBuilt) and envelope.step in waiting:
                yield waiting.pop(envelope.step), event
        if ends and not waiting:
            return
        if ends and envelope.step > max(waiting):
            break
    for built in waiting.values():
        yield built, None


def block_size_of(source: EventSource) -> int:
    """Tokens per block; 0 where the trace has no header."""
    started = next(iter(source.find(kinds=[RunStarted.__name__])), None)
    event = started.event if started else None
    return event.block_size if isinstance(event, RunStarted) else 0
