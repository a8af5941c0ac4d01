"""From a decision to the event that carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..recorder.decision import DecisionId, row_index
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
    Envelope,
    Event,
    GraphReplayed,
    InputsBuilt,
    MaskBuilt,
    RequestForked,
    RequestPreempted,
    StepScheduled,
    TransferStarted,
)

CARRIERS: Mapping[str, tuple[type[Event], ...]] = {
    "admit": (StepScheduled,),
    "ready": (StepScheduled,),
    "share": (BlockShared,),
    "acquire": (BlockShared,),
    "reuse": (BlockAllocated,),
    "free": (BlockFreed, BlockReleased),  # freed, or only released
    "trim": (BlockReleased,),
    "scrub": (BlockScrubbed,),
    "scrub-evicted": (BlockScrubbed,),
    "publish": (BlockRegistered,),
    "fork": (RequestForked,),
    "copy": (BlockCopied,),
    "retire": (BlockFreed, BlockReleased),
    "rollback": (StepScheduled,),
    "load": (TransferStarted,),
    "store": (TransferStarted,),
    "epoch": (BlockUnregistered,),
    "staging": (InputsBuilt,),
    "replay": (GraphReplayed,),
}
"""By kind of decision: what carries it out, the telling event first."""

LATER = ("admit", "rollback")
"""Kinds that a later step may carry out: the next one that has a row of the request. One that is
admitted waits for what is loaded for it."""

BUILT: Mapping[str, type[Event]] = {
    "table": InputsBuilt,
    "slots": InputsBuilt,
    "pad": InputsBuilt,
    "positions": InputsBuilt,
    "mask": MaskBuilt,
}


def carrier_of(id: DecisionId, envelopes: Iterable[Envelope]) -> Envelope | None:
    """The event that carries `id` out; for one whose answer was to do nothing, its
    `DecisionMade`; None when the trace doesn't have it."""
    if id.kind in BUILT:
        return _builder_carrier(id, envelopes)
    made: Envelope | None = None
    found: dict[type[Event], Envelope] = {}
    kinds = CARRIERS.get(id.kind, ())
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, DecisionMade):
            if event.decision == str(id) and made is None:
                made = envelope
            continue
        is_time = made is not None and (id.kind in LATER or envelope.step == made.step)
        if is_time and isinstance(event, kinds) and _carries(id, event):
            found.setdefault(type(event), envelope)
    return next((found[kind] for kind in kinds if kind in found), made)


def _carries(id: DecisionId, event: Event) -> bool:
    """Whether the event bears the decision's id; some kinds are carried out by events that don't:
    by those of a whole step, of a transfer of several blocks, or of a block that others decide on
    too."""
    if event.decision == str(id):
        return True
    match event:
        case StepScheduled() | InputsBuilt():
            return id.request in event.requests
        case TransferStarted():
            is_its = event.direction == id.kind and event.request in (None, id.request)
            return is_its and (event.group or 0) == id.group
        case BlockShared() if id.kind == "acquire":
            where = event.request, event.index, event.group or 0
            return where == (id.request, id.index, id.group)
        case BlockReleased() if id.kind == "free":  # one that bears the trim's id
            where = event.request, event.index, event.group or 0
            return where == (id.request, id.index, id.group)
        case BlockFreed() | BlockReleased():
            return id.kind == "retire"
        case _:
            return False


def _builder_carrier(id: DecisionId, envelopes: Iterable[Envelope]) -> Envelope | None:
    """The build of the row of this request with this sequence length, in this admission."""
    preemptions = 0
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, RequestPreempted) and event.request == id.request:
            preemptions += 1
        if not isinstance(event, InputsBuilt) or preemptions != id.ordinal:
            continue
        if (event.group or 0) != id.group:
            continue
        phases = event.phases or (None,) * len(event.requests)
        lengths = map(row_index, event.seq_lens, event.query_lens, phases)
        if (id.request, id.index) in zip(event.requests, lengths, strict=False):
            if BUILT[id.kind] is InputsBuilt:
                return envelope
            return _mask_after(envelope, id.group, envelopes)
    return None


def _mask_after(built: Envelope, group: int, envelopes: Iterable[Envelope]) -> Envelope | None:
    for envelope in envelopes:
        event = envelope.event
        if envelope.seq < built.seq or not isinstance(event, MaskBuilt):
            continue
        if (event.group or 0) == group:
            return envelope if envelope.step == built.step else None
    return None
