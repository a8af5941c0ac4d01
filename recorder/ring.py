"""The last steps or bytes of a run, so that a recorder can be left on for days.

What is older is removed whole steps at a time, from the front. A `SpanDropped` (why: `ring`) takes
its place and bears the state of the run there, so that whoever folds the trace goes on from it. Of
what is older there stay `RunStarted`, the pieces of the vocabulary, and the `RequestAdded` of
requests that the state still knows.

At a keyframe the encoder starts anew, so that nothing behind it needs what is removed before it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import delete

from . import schema
from .digest import event_digest, joined_digest
from .encoder import encode
from .events import (
    RING,
    Envelope,
    PiecesDefined,
    RequestAdded,
    RunEnded,
    RunStarted,
    SpanDropped,
)
from .ring_limit import RingLimit
from .stores.base import Store

_SEGMENTS = 4
"""Into how many parts a ring falls: one of them is removed at a time."""

_LEAST_STEPS_A_SEGMENT = 16
"""A keyframe costs as much as some steps, so that a short ring has fewer of them."""


_STAY = (RequestAdded, RunStarted, RunEnded)


class Keyframer(Protocol):
    """Follows the run. It is `replay` that knows what events mean."""

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        """The events of the next step."""
        ...

    def state(self) -> str:
        """The state after the last event, as text."""
        ...

    def requests(self) -> Collection[str]:
        """The requests that this state knows."""
        ...


class _Kept(NamedTuple):
    """An event that stays when what is around it goes."""

    seq: int
    digest: bytes


class _Keyframe(NamedTuple):
    mark: Envelope
    """The `SpanDropped` with which a ring would begin here."""
    last_seq: int
    """Of its step."""
    steps: int
    """Up to here, like `events`."""
    events: int
    kept: tuple[_Kept, ...]
    next_name: int
    """Rows of `names` below it are not needed from here on."""


class Ring:
    """Follows what is committed, and removes what is too old from the store."""

    def __init__(self, limit: RingLimit, keyframer: Keyframer) -> None:
        self.limit = limit
        self._keyframer = keyframer
        self._steps = 0
        self._events = 0
        self._keyframe_at = 0
        """Steps at the last keyframe."""
        self._written = 0
        """Bytes since then, about."""
        self._used: int | None = None
        self._keyframes: deque[_Keyframe] = deque()
        self._begin: _Keyframe | None = None
        self._for_ever: list[_Kept] = []
        self._added: dict[str, _Kept] = {}
        self._last: Sequence[Envelope] = ()

    @property
    def steps_at_once(self) -> int:
        """How many steps may be committed before `follow` is told of them."""
        return max(self._keyframe_at + self._segment_steps - self._steps, 1)

    @property
    def events_in_store(self) -> int:
        begin = self._begin
        return self._events if begin is None else self._events - begin.events + len(begin.kept) + 1

    def follow(self, envelopes: Sequence[Envelope]) -> None:
        """The events of a step that was committed."""
        self._keyframer(envelopes)
        for envelope in envelopes:
            event = envelope.event
            if isinstance(event, RequestAdded):
                self._added[event.request] = _kept(envelope)
            elif isinstance(event, PiecesDefined | RunStarted):
                self._for_ever.append(_kept(envelope))
        self._steps += 1
        self._events += len(envelopes)
        self._last = envelopes

    def is_keyframe_due(self, store: Store) -> bool:
        """Whether a ring may begin behind the last step, and a keyframe is worth its cost."""
        if self._mark_seq() is None:
            return False
        if self.limit.bytes is None:
            return self._steps - self._keyframe_at >= self._segment_steps
        used = store.used_bytes()
        self._written += max(used - (self._used or 0), 0)
        self._used = used
        return self._written >= self.limit.bytes // (2 * _SEGMENTS)

    def lay_keyframe(self, next_name: int) -> None:
        """Whatever is encoded from here on must need nothing that came before."""
        seq = self._mark_seq()
        assert seq is not None
        last = self._last[-1]
        known = self._keyframer.requests()
        self._added = {name: kept for name, kept in self._added.items() if name in known}
        kept = sorted((*self._for_ever, *self._added.values()))
        first = 1 if kept and kept[0].seq == 0 else 0
        mark = SpanDropped(
            first_seq=first, count=seq - first, why=RING, state=self._keyframer.state()
        )
        self._keyframes.append(
            _Keyframe(
                Envelope(seq, last.step, last.t_ns, last.rank, mark), last.seq, self._steps,
                self._events, tuple(kept), next_name,
            )
        )  # fmt: skip
        self._keyframe_at, self._written = self._steps, 0

    def trim(self, store: Store) -> bool:
        """Remove what is older than the ring is long; True if the caller is to commit that."""
        begin = self._new_begin(store)
        if begin is None:
            return False
        self._remove_before(store, begin)
        self._begin = begin
        self._used = None if self.limit.bytes is None else store.used_bytes()
        return True

    def _new_begin(self, store: Store) -> _Keyframe | None:
        """The last keyframe at which the ring is still long enough, or no longer too large."""
        begin = None
        if self.limit.bytes is None:
            while self._keyframes and self._is_long_enough(self._keyframes[0]):
                begin = self._keyframes.popleft()
            return begin
        used, most = store.used_bytes(), self.limit.bytes - self.limit.bytes // _SEGMENTS
        an_event = used / max(self.events_in_store, 1)
        while self._keyframes and used > most:
            begin = self._keyframes.popleft()
            used = an_event * (self._events - begin.events)
        return begin

    def _is_long_enough(self, begin: _Keyframe) -> bool:
        return self._steps - begin.steps >= (self.limit.steps or 0)

    @property
    def _segment_steps(self) -> int:
        steps = self.limit.steps
        return max((steps or 0) // _SEGMENTS, _LEAST_STEPS_A_SEGMENT)

    def _mark_seq(self) -> int | None:
        """The seq that a mark behind the last step would take: that of its last event, pieces
        apart. None where that event must stay."""
        for envelope in reversed(self._last):
            if not isinstance(envelope.event, PiecesDefined):
                return None if isinstance(envelope.event, _STAY) else envelope.seq
        return None

    def _remove_before(self, store: Store, begin: _Keyframe) -> None:
        events, steps, names, postings = (
            schema.events.c, schema.steps.c, schema.names.c, schema.postings.c
        )  # fmt: skip
        stay = {kept.seq for kept in begin.kept}
        old = self._begin
        if old is not None:
            for kept in old.kept:
                if kept.seq not in stay:
                    store.remove(delete(schema.events).where(events.seq == kept.seq))
        start = 0 if old is None else old.mark.seq
        inside = sorted(seq for seq in stay if start <= seq <= begin.last_seq)
        for first, last in _between(start, begin.mark.seq, inside):
            store.remove(delete(schema.events).where(events.seq >= first, events.seq <= last))
        store.remove(delete(schema.steps).where(steps.last_seq < begin.last_seq))
        store.remove(delete(schema.names).where(names.id < begin.next_name))
        store.remove(delete(schema.postings).where(postings.last_seq <= begin.last_seq))
        store.remove(delete(schema.header).where(schema.header.c.key == "ring"))
        store.add(schema.events, [_row(begin.mark)])
        store.add(schema.header, [("ring", json.dumps(self._described(begin)))])

    def _described(self, begin: _Keyframe) -> dict[str, Any]:
        """What the header says: where the ring begins, and the digest of the events that stayed
        and of the mark, which the chain of digests doesn't cover."""
        digests = [kept.digest for kept in sorted((*begin.kept, _kept(begin.mark)))]
        return {
            "limit": str(self.limit),
            "begins_seq": begin.mark.seq,
            "begins_step": begin.mark.step,
            "digest": joined_digest(digests).hex(),
        }


def _between(start: int, end: int, stay: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The ranges from start to end, both included, that have none of `stay`."""
    for seq in stay:
        if seq > start:
            yield start, min(seq - 1, end)
        start = seq + 1
    if start <= end:
        yield start, end


def _kept(envelope: Envelope) -> _Kept:
    encoded = encode(envelope.event)
    return _Kept(envelope.seq, event_digest(envelope.seq, envelope.step, envelope.kind, encoded))


def _row(envelope: Envelope) -> tuple[Any, ...]:
    encoded = encode(envelope.event)
    return (*envelope[:4], envelope.kind, encoded.request, encoded.block, encoded.payload)
