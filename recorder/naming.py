"""What an event names: requests, blocks, and slots that it writes. Lists of them are in
`postings`; here is what they are lists of."""

from __future__ import annotations

from .events import (
    BlockCopied,
    Event,
    PrefixLookedUp,
    SlotsWritten,
    TransferStarted,
)

WRITES = (SlotsWritten.__name__, BlockCopied.__name__)
LISTS_OF_REQUESTS = ("StepScheduled", "InputsBuilt", "MaskBuilt", "SlotsWritten", "TokensSampled")
LISTS_OF_BLOCKS = (*WRITES, PrefixLookedUp.__name__, TransferStarted.__name__)
"""Kinds that name blocks elsewhere than in a field `block`."""


def names_request(event: Event, request: str) -> bool:
    """In its field `request` or in its list of requests."""
    return getattr(event, "request", None) == request or request in getattr(event, "requests", ())


def touches_block(event: Event, block: int, group: int, block_size: int) -> bool:
    """Whether it is about a block, copies it, lists it, or writes into it. A block table doesn't
    count: it lists, step after step, what its request has held all along. A lookup names no group.
    """
    if isinstance(event, PrefixLookedUp):
        return group == 0 and block in event.blocks
    if (getattr(event, "group", None) or 0) != group:
        return False
    if isinstance(event, SlotsWritten):
        slots = range(block * block_size, (block + 1) * block_size)
        return any(slot in slots for slot in event.slots)
    if isinstance(event, BlockCopied):
        return block in (event.source, event.destination)
    if isinstance(event, TransferStarted):
        return block in event.blocks
    return getattr(event, "block", None) == block


def writes_slot(event: Event, slot: int, group: int, block_size: int) -> bool:
    """Whether it writes that slot, or copies something into it."""
    if isinstance(event, SlotsWritten):
        return (event.group or 0) == group and slot in event.slots
    if isinstance(event, BlockCopied) and block_size:
        block, offset = divmod(slot, block_size)
        return (event.group or 0) == group and event.destination == block and offset < event.slots
    return False
