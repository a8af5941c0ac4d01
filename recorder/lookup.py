"""Finds the events that name a request, a block or a slot, through the lists of `postings`.

A list may be missing: behind the last segment, after a kill, in a file of version 1; or it may be
damaged. Then the events are read through, so the answer is the same with and without lists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, func, select

from .arrays import WrongType
from .events import Envelope
from .naming import (
    LISTS_OF_BLOCKS,
    LISTS_OF_REQUESTS,
    WRITES,
    names_request,
    touches_block,
    writes_slot,
)
from .postings import SLOTS_PER_LIST, unpack_seqs
from .schema import events, names, postings

Fetch = Callable[[Select[Any]], Iterable[Row[Any]]]
Decode = Callable[[Row[Any]], Envelope]

Kinds = Collection[str] | None
"""Kinds of events that are asked for; None for all."""

_AT_ONCE = 500
_FEW = 8


class _Asked(NamedTuple):
    kinds: Kinds
    have_lists: Sequence[str]
    """Kinds that lists are made of: these must be read through where there is no list."""
    fits: Callable[[Envelope], bool]
    start: int
    stop: int

    def unlisted(self) -> list[str]:
        return [kind for kind in self.have_lists if self.kinds is None or kind in self.kinds]


class Lookup:
    """Answers about one trace. `has_lists`: whether it has the table at all."""

    def __init__(self, fetch: Fetch, decode: Decode, has_lists: bool) -> None:
        self._fetch = fetch
        self._decode = decode
        self._has_lists = has_lists

    def of_request(self, request: str, kinds: Kinds, start: int, stop: int) -> Iterator[Envelope]:
        """Events of these kinds that name it, start <= seq < stop, in order."""

        def names_it(envelope: Envelope) -> bool:
            return names_request(envelope.event, request)

        own = self._own(events.c.request == request, start, stop)
        wanted = [("request", 0, self._ids_of(request))]
        asked = _Asked(kinds, LISTS_OF_REQUESTS, names_it, start, stop)
        return self._found(own, wanted, asked)

    def touching_block(
        self, block: int, group: int, block_size: int, kinds: Kinds, start: int, stop: int
    ) -> Iterator[Envelope]:
        """Events of these kinds that are about it, list it, copy it or write into it; in order."""

        def touches(envelope: Envelope) -> bool:
            return touches_block(envelope.event, block, group, block_size)

        own = self._own(events.c.block == block, start, stop)
        first, last = block * block_size, (block + 1) * block_size - 1
        written = range(first // SLOTS_PER_LIST, last // SLOTS_PER_LIST + 1) if block_size else ()
        wanted = [("block", group, [block]), ("slots", group, written)]
        asked = _Asked(kinds, LISTS_OF_BLOCKS, touches, start, stop)
        return self._found(own, wanted, asked)

    def writes_of(
        self, slot: int, group: int, block_size: int, start: int, stop: int
    ) -> Iterator[Envelope]:
        """Events that write a slot, in order."""

        def writes(envelope: Envelope) -> bool:
            return writes_slot(envelope.event, slot, group, block_size)

        copied = [slot // block_size] if block_size else []
        wanted = [("slots", group, [slot // SLOTS_PER_LIST]), ("block", group, copied)]
        return self._found(set(), wanted, _Asked(WRITES, WRITES, writes, start, stop))

    def last_write(self, slot: int, group: int, block_size: int, stop: int) -> Envelope | None:
        """The last event before `stop` that writes a slot."""
        keys = [("slots", slot // SLOTS_PER_LIST)]
        if block_size:
            keys.append(("block", slot // block_size))
        tail = self._tail(self._covered(), WRITES, 0, stop, backwards=True)
        lists = [self._listed_backwards(what, group, key, stop) for what, key in keys]
        listed = self._backwards(merge(*lists, reverse=True))
        try:
            for envelope in chain(tail, listed):
                if writes_slot(envelope.event, slot, group, block_size):
                    return envelope
        except WrongType:
            return self._without_lists().last_write(slot, group, block_size, stop)
        return None

    def _found(
        self, own: set[int], wanted: Sequence[tuple[str, int, Sequence[int]]], asked: _Asked
    ) -> Iterator[Envelope]:
        """Events of these seqs, of the lists wanted, and of kinds that are not yet listed."""
        covered = self._covered()
        seqs = set(own)
        try:
            for what, group, keys in wanted:
                seqs.update(self._listed(what, group, keys, asked.start, asked.stop))
        except WrongType:
            return self._without_lists()._found(own, wanted, asked)
        unlisted = self._tail(covered, asked.unlisted(), asked.start, asked.stop)
        return _in_order(self._events(sorted(seqs), asked), filter(asked.fits, unlisted))

    def _without_lists(self) -> Lookup:
        return Lookup(self._fetch, self._decode, has_lists=False)

    # --- lists ------------------------------------------------------------------------------------

    def _covered(self) -> int:
        """The last event that lists cover; -1 where there are none."""
        if not self._has_lists:
            return -1
        query = select(func.max(postings.c.last_seq)).where(postings.c.what == "segment")
        for row in self._fetch(query):
            return -1 if row[0] is None else row[0]
        return -1

    def _ids_of(self, request: str) -> list[int]:
        if not self._has_lists:
            return []
        return [row.id for row in self._fetch(select(names.c.id).where(names.c.name == request))]

    def _listed(
        self, what: str, group: int, keys: Sequence[int], start: int, stop: int
    ) -> Iterator[int]:
        if not self._has_lists:
            return
        query = _lists_of(what, group, postings.c.key.in_(keys), stop)
        for row in self._fetch(query.where(postings.c.last_seq >= start)):
            yield from (seq for seq in _seqs(row) if start <= seq < stop)

    def _listed_backwards(self, what: str, group: int, key: int, stop: int) -> Iterator[int]:
        if not self._has_lists:
            return
        query = _lists_of(what, group, postings.c.key == key, stop)
        for row in self._fetch(query.order_by(postings.c.first_seq.desc())):
            yield from (seq for seq in reversed(_seqs(row)) if seq < stop)

    # --- events -----------------------------------------------------------------------------------

    def _own(self, condition: ColumnElement[bool], start: int, stop: int) -> set[int]:
        query = select(events.c.seq).where(condition, events.c.seq >= start, events.c.seq < stop)
        return {row.seq for row in self._fetch(query)}

    def _events(self, seqs: Sequence[int], asked: _Asked) -> Iterator[Envelope]:
        for at in range(0, len(seqs), _AT_ONCE):
            query = select(events).where(events.c.seq.in_(seqs[at : at + _AT_ONCE]))
            if asked.kinds is not None:
                query = query.where(events.c.kind.in_(asked.kinds))
            for row in self._fetch(query.order_by(events.c.seq)):
                envelope = self._decode(row)
                if asked.fits(envelope):
                    yield envelope

    def _tail(
        self, covered: int, kinds: Sequence[str], start: int, stop: int, backwards: bool = False
    ) -> Iterator[Envelope]:
        """Events of kinds that have lists, behind what is covered."""
        seq = events.c.seq
        query = select(events).where(seq > covered, seq >= start, seq < stop)
        query = query.where(events.c.kind.in_(kinds))
        for row in self._fetch(query.order_by(seq.desc() if backwards else seq)):
            yield self._decode(row)

    def _backwards(self, seqs: Iterator[int]) -> Iterator[Envelope]:
        """A few at a time: the first is often the one."""
        while few := list(islice(seqs, _FEW)):
            query = select(events).where(events.c.seq.in_(few)).order_by(events.c.seq.desc())
            yield from map(self._decode, self._fetch(query))


def _lists_of(what: str, group: int, keys: ColumnElement[bool], stop: int) -> Any:
    lists = postings.c
    return select(lists.first_seq, lists.seqs).where(
        lists.what == what, lists.group == group, keys, lists.first_seq < stop
    )


def _seqs(row: Row[Any]) -> list[int]:
    """Raises WrongType for a damaged list."""
    return unpack_seqs(row.first_seq, row.seqs)


def _in_order(listed: Iterator[Envelope], tail: Iterator[Envelope]) -> Iterator[Envelope]:
    """Both in order, each event once."""
    last = -1
    for envelope in merge(listed, tail, key=lambda e: e.seq):
        if envelope.seq != last:
            last = envelope.seq
            yield envelope
