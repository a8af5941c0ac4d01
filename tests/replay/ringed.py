"""What a ring leaves of a run, made from its events without a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from kvrewind.recorder.digest import by_step
from kvrewind.recorder.events import (
    RING,
    Envelope,
    PiecesDefined,
    RequestAdded,
    RunStarted,
    SpanDropped,
)
from kvrewind.replay.reducer import fold
from kvrewind.replay.snapshot import compacted, dump
from kvrewind.replay.state import State


def cuts(envelopes: Sequence[Envelope]) -> Iterator[int]:
    """How many events precede the end of each step at which a ring may begin."""
    count = 0
    for _, group in by_step(envelopes):
        count += len(group)
        if count < len(envelopes) and not isinstance(_mark_at(group).event, RequestAdded):
            yield count


def ringed(envelopes: Sequence[Envelope], cut: int) -> list[Envelope]:
    """The run as a ring that begins behind the first `cut` events has it."""
    state = fold(envelopes[:cut])
    known = compacted(state).requests
    last = _mark_at(envelopes[:cut])
    mark = SpanDropped(first_seq=1, count=last.seq - 1, why=RING, state=dump(state))
    kept = [e for e in envelopes[:cut] if _stays(e, known)]
    begin = [*kept, last._replace(event=mark)]
    return [*sorted(begin, key=lambda e: e.seq), *envelopes[cut:]]


def _mark_at(envelopes: Sequence[Envelope]) -> Envelope:
    return next(e for e in reversed(envelopes) if not isinstance(e.event, PiecesDefined))


def _stays(envelope: Envelope, known: Any) -> bool:
    event = envelope.event
    if isinstance(event, RequestAdded):
        return event.request in known
    return isinstance(event, RunStarted | PiecesDefined)


def plain(state: State) -> dict[str, Any]:
    """All of a state that can be compared; slots as the writes that they hold."""
    parts = {f.name: getattr(state, f.name) for f in fields(state) if f.name not in _ASIDE}
    parts["pools"] = {
        group: {
            f.name: getattr(pool, f.name)
            if f.name != "slots"
            else {slot: state.log[index] for slot, index in pool.slots.items()}
            for f in fields(pool)
        }
        for group, pool in state.pools.items()
    }
    return parts


_ASIDE = ("log", "header", "restored_seq")
