"""Which events name a request, a block or a slot: lists that make looking them up cheap.

The columns `request` and `block` of `events` have indexes of their own. Here is what only payloads
say: requests in arrays, blocks in lists, and slots that were written, sixteen to a list. A list
covers a segment of some thousand events and is written with the end of it; what comes after the
last segment has no lists yet and is read through.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

import numpy as np

from .arrays import SIZES, TYPECODES, WrongType, little_endian
from .events import (
    BlockCopied,
    Event,
    InputsBuilt,
    MaskBuilt,
    PrefixLookedUp,
    SlotsWritten,
    StepScheduled,
    TokensSampled,
    TransferStarted,
)

What = Literal["segment", "request", "block", "slots"]
"""`segment` has no key and no list: it says which events the lists cover."""

SLOTS_PER_LIST = 16
EVENTS_PER_SEGMENT = 4_096

_DELTAS = ((1 << 8, 9, "<u1"), (1 << 16, 10, "<u2"), (1 << 32, 11, "<u4"), (1 << 63, 4, "<i8"))


class Posting(NamedTuple):
    """A row of the table `postings`: events of one segment, in ascending order."""

    what: What
    group: int
    key: int
    """Of a request an id in `names`, of a block its number, of slots the first // 16."""
    rank: int
    first_seq: int
    last_seq: int
    seqs: bytes
    """Type of the numbers (u8, as the ext types), then the differences between the seqs."""


class _Open(NamedTuple):
    """What one kind of key has gathered since the last segment."""

    seqs: list[int]
    keys: list[Sequence[int]]
    """Of each of these events."""


class PostingWriter:
    """Gathers what the events of one trace name, in their order."""

    def __init__(self, ids_of: Callable[[Sequence[str | None]], tuple[int, ...]]) -> None:
        """`ids_of`: the ids of the requests in an array."""
        self._ids_of = ids_of
        self._open: dict[tuple[What, int, int], _Open] = {}
        self._batches: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        """(rank, ids of requests) -> seqs: the events of a step list the same ones, and so do those
        of the next."""
        self._last_requests: Sequence[str | None] | None = None
        self._last_rank = 0
        self._last_seqs: list[int] = []
        self._first: int | None = None
        self._last = 0
        self._events = 0
        self.of_class: Mapping[type[Event], Callable[[Any, int, int], None]] = {
            StepScheduled: self._requests,
            InputsBuilt: self._requests,
            MaskBuilt: self._requests,
            TokensSampled: self._requests,
            SlotsWritten: self._written,
            BlockCopied: self._copied,
            PrefixLookedUp: self._looked_up,
            TransferStarted: self._transferred,
        }
        """What gathers from events of a class, given their seq and rank."""

    def close_step(self, first_seq: int, last_seq: int, events: int) -> list[Posting]:
        """The lists of a segment, if it ends with this step."""
        if self._first is None:
            self._first = first_seq
        self._last = last_seq
        self._events += events
        return self.flush() if self._events >= EVENTS_PER_SEGMENT else []

    def flush(self) -> list[Posting]:
        """The lists of what came since the last segment."""
        if self._first is None:
            return []
        found = [Posting("segment", 0, 0, 0, self._first, self._last, b"")]
        for (what, rank, group), gathered in self._open.items():
            found += _lists(what, rank, group, gathered)
        found += _lists_of_batches(self._batches)
        self._open.clear()
        self._batches.clear()
        self._last_requests = None
        self._first, self._events = None, 0
        return found

    def _add(self, what: What, rank: int, group: int, seq: int, keys: Sequence[int]) -> None:
        gathered = self._open.get((what, rank, group))
        if gathered is None:
            gathered = self._open[what, rank, group] = _Open([], [])
        gathered.seqs.append(seq)
        gathered.keys.append(keys)

    def _requests(self, event: Any, seq: int, rank: int) -> None:
        if event.requests == self._last_requests and rank == self._last_rank:
            self._last_seqs.append(seq)
            return
        batch = rank, self._ids_of(event.requests)
        self._last_requests, self._last_rank = event.requests, rank
        self._last_seqs = self._batches.setdefault(batch, [])
        self._last_seqs.append(seq)

    def _written(self, event: SlotsWritten, seq: int, rank: int) -> None:
        self._requests(event, seq, rank)
        self._add("slots", rank, event.group or 0, seq, event.slots)

    def _copied(self, event: BlockCopied, seq: int, rank: int) -> None:
        self._add("block", rank, event.group or 0, seq, (event.source, event.destination))

    def _looked_up(self, event: PrefixLookedUp, seq: int, rank: int) -> None:
        self._add("block", rank, 0, seq, event.blocks)

    def _transferred(self, event: TransferStarted, seq: int, rank: int) -> None:
        self._add("block", rank, event.group or 0, seq, event.blocks)


def _lists_of_batches(
    batches: Mapping[tuple[int, tuple[int, ...]], list[int]],
) -> Iterator[Posting]:
    of_request: dict[tuple[int, int], list[list[int]]] = {}
    for (rank, ids), seqs in batches.items():
        for number in ids:
            of_request.setdefault((number, rank), []).append(seqs)
    packed: dict[tuple[int, ...], tuple[int, int, bytes]] = {}
    for (number, rank), parts in sorted(of_request.items()):
        which = tuple(map(id, parts))  # requests that run together have equal lists
        if which not in packed:
            seqs = sorted(chain.from_iterable(parts))
            packed[which] = seqs[0], seqs[-1], _packed(np.diff(seqs))
        yield Posting("request", 0, number, rank, *packed[which])


def _lists(what: What, rank: int, group: int, gathered: _Open) -> Iterator[Posting]:
    keys = np.array(list(chain.from_iterable(gathered.keys)), dtype=np.int64)
    seqs = np.array(gathered.seqs, dtype=np.int64).repeat([len(k) for k in gathered.keys])
    if what == "slots":
        seqs, keys = seqs[keys >= 0], keys[keys >= 0] // SLOTS_PER_LIST
    order = np.argsort(keys, kind="stable")
    keys, seqs = keys[order], seqs[order]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (np.diff(keys) != 0) | (np.diff(seqs) != 0)
    keys, seqs = keys[is_new], seqs[is_new]
    if not len(keys):
        return
    starts = np.flatnonzero(np.concatenate(([True], np.diff(keys) != 0)))
    ends = np.concatenate((starts[1:], [len(keys)]))
    deltas = np.diff(seqs, prepend=seqs[0])
    deltas[starts] = 0
    widest = np.maximum.reduceat(deltas, starts)
    raw = deltas.astype("<u1").tobytes()
    columns = (keys[starts], seqs[starts], seqs[ends - 1], starts, ends, widest)
    for key, first, last, start, end, wide in zip(*(c.tolist() for c in columns), strict=True):
        is_narrow = wide < 1 << 8
        listed = b"\x09" + raw[start + 1 : end] if is_narrow else _packed(deltas[start + 1 : end])
        yield Posting(what, group, key, rank, first, last, listed)


def _packed(deltas: np.ndarray[Any, Any]) -> bytes:
    widest = deltas.max() if len(deltas) else 0
    code, dtype = next((code, dtype) for bound, code, dtype in _DELTAS if widest < bound)
    return bytes((code,)) + deltas.astype(dtype).tobytes()


def unpack_seqs(first_seq: int, listed: Any) -> list[int]:
    """The seqs of a list. Raises WrongType for what is none."""
    if type(listed) is not bytes or not listed or listed[0] not in TYPECODES:
        raise WrongType("a list of events")
    if (len(listed) - 1) % SIZES[listed[0]]:
        raise WrongType("a list of whole numbers")
    deltas = array(TYPECODES[listed[0]], listed[1:])
    return list(accumulate(little_endian(deltas), initial=first_seq))
