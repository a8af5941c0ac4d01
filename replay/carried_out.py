"""From a decision to the event that carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..recorder.decision import DecisionId
from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockShared,
    DecisionMade,
    Envelope,
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestPreempted,
    StepScheduled,
)

CARRIERS: Mapping[str, tuple[type[Event], ...]] = {
    "admit": (StepScheduled,),
    "share": (BlockShared,),
    "acquire": (BlockShared,),
    "reuse": (BlockAllocated,),
    "free": (BlockFreed, BlockReleased),  # freed, or only released
    "trim": (BlockReleased,),
    "publish": (BlockRegistered,),
    "copy": (BlockCopied,),
}
"""By kind of decision: what carries it out, the telling event first."""

BUILT: Mapping[str, type[Event]] = {
    "table": InputsBuilt,
    "slots": InputsBuilt,
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
            if event.decision == str(id):
                made = envelope
        elif made is not None and envelope.step == made.step and _carries(id, event, kinds):
            found.setdefault(type(event), envelope)
    return next((found[kind] for kind in kinds if kind in found), made)


def _carries(id: DecisionId, event: Event, kinds: tuple[type[Event], ...]) -> bool:
    if not isinstance(event, kinds):
        return False
    if event.decision == str(id):
        return True
    if isinstance(event, StepScheduled):
        return id.request in event.requests
    if id.kind == "acquire" and isinstance(event, BlockShared):
        return (event.request, event.index) == (id.request, id.index)
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
        rows = zip(event.requests, event.seq_lens, strict=False)
        if (id.request, id.index) in rows:
            return envelope if BUILT[id.kind] is InputsBuilt else _mask_after(envelope, envelopes)
    return None


def _mask_after(built: Envelope, envelopes: Iterable[Envelope]) -> Envelope | None:
    for envelope in envelopes:
        if envelope.seq > built.seq and isinstance(envelope.event, MaskBuilt):
            return envelope if envelope.step == built.step else None
    return None
