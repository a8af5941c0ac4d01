"""Traces of several processes as one: each becomes a rank.

Events stand in the order of their wall time (`RunStarted.wall_clock` and `t_ns`); each input keeps
its own order, whatever its clock says. Seqs are given anew, and what names one moves along. Blocks
of different ranks are different blocks, and so are their steps, which every rank counts by itself.

A request id that several ranks have stays where all of them were given the same request, as the
ranks of one tensor-parallel engine are; otherwise the first keeps it, and in each later rank it is
`id@rank`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from ..recorder.errors import BadInput
from ..recorder.events import (
    RING,
    Envelope,
    RequestAdded,
    RunEnded,
    RunStarted,
    SpanDropped,
)
from ..recorder.reader import TraceReader
from .renaming import moved_mark, renamed

_SAME = ("engine", "model", "model_digest", "tokenizer_digest", "block_size")
"""Fields of the header in which the ranks of one service agree."""


class NotMergeable(BadInput):
    """Traces that are not those of one service's ranks, or that can't be trusted."""


@dataclass(frozen=True, slots=True)
class Input:
    """One trace, and which ranks its own become."""

    source: TraceReader
    header: RunStarted | None
    ranks: dict[int, int]
    added: dict[tuple[int, str], RequestAdded]
    """(new rank, request) -> what it was given."""
    starts_ns: int | None
    """Wall time of its t_ns 0; None where the header doesn't tell."""
    ring_ends: int
    """Seq of the last mark with which a ring begins; -1 without one."""
    remarks: tuple[str, ...]
    """What is wrong with it, one sentence each."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge will give."""

    inputs: tuple[Input, ...]
    renamed: dict[tuple[int, str], str]
    """(rank, request) -> its new name."""

    def envelopes(self) -> Iterator[Envelope]:
        """All events in order. Reads the inputs once more."""
        return _renumbered(self)


def merge(sources: Sequence[TraceReader]) -> Merged:
    """Looks at the traces and says how they are merged. Raises NotMergeable."""
    inputs: list[Input] = []
    for source in sources:
        first = sum(len(known.ranks) for known in inputs)
        inputs.append(_looked_at(source, first))
    _require_one_service(inputs)
    return Merged(tuple(inputs), _new_names(inputs))


# --- what the inputs are --------------------------------------------------------------------------


def _looked_at(source: TraceReader, first_rank: int) -> Input:
    broken = source.verify_chain()
    if broken is not None:
        raise NotMergeable(
            f"{source.path}: its events don't give the digest of step {broken}, which new digests "
            "would hide; merge a sound copy"
        )
    kinds = [cls.__name__ for cls in (RunStarted, RunEnded, RequestAdded, SpanDropped)]
    told = list(source.find(kinds=kinds))
    ranks = {rank: first_rank + i for i, rank in enumerate(_ranks(source))}
    header = next((e for e in told if isinstance(e.event, RunStarted)), None)
    remarks = list(source.problems)
    starts_ns = None
    if header is None or not isinstance(header.event, RunStarted):
        remarks.append("there is no RunStarted, so it is taken to start with the others")
    else:
        starts_ns = _nanoseconds(header.event.wall_clock)
        if starts_ns is None:
            remarks.append("its wall_clock is no time, so it is taken to start with the others")
        else:
            starts_ns -= header.t_ns
    return Input(
        source,
        source.run,
        ranks,
        {
            (ranks[e.rank], e.event.request): e.event
            for e in told
            if isinstance(e.event, RequestAdded)
        },
        starts_ns,
        max((e.seq for e in told if _is_ring(e)), default=-1),
        (*remarks, *(_gap(e.event) for e in told if isinstance(e.event, SpanDropped))),
    )


def _ranks(source: TraceReader) -> list[int]:
    return sorted({envelope.rank for envelope in source.envelopes()})


def _is_ring(envelope: Envelope) -> bool:
    return isinstance(envelope.event, SpanDropped) and envelope.event.why == RING


def _gap(event: SpanDropped) -> str:
    last = event.first_seq + event.count - 1
    return f"its events {event.first_seq} to {last} are not there ({event.why})"


def _nanoseconds(wall_clock: str) -> int | None:
    try:
        when = datetime.fromisoformat(wall_clock)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _require_one_service(inputs: Sequence[Input]) -> None:
    known = [(i.source, i.header) for i in inputs if i.header is not None]
    for source, header in known[1:]:
        first_source, first = known[0]
        for field in _SAME:
            own, others = getattr(header, field), getattr(first, field)
            if own != others and None not in (own, others):
                raise NotMergeable(
                    f"{source.path} has {field} {own} and {first_source.path} has {others}: "
                    "merge only the ranks of one service"
                )


def _new_names(inputs: Sequence[Input]) -> dict[tuple[int, str], str]:
    """Of the requests that get one."""
    added = dict(chain.from_iterable(known.added.items() for known in inputs))
    taken = {request for _, request in added}
    first: dict[str, RequestAdded] = {}
    differ: set[str] = set()
    for (_, request), event in sorted(added.items(), key=lambda item: item[0]):
        if event != first.setdefault(request, event):
            differ.add(request)
    names: dict[tuple[int, str], str] = {}
    seen: set[str] = set()
    for rank, request in sorted(added):
        if request in differ and request in seen:
            name = names[rank, request] = _unused(f"{request}@{rank}", taken)
            taken.add(name)
        seen.add(request)
    return names


def _unused(name: str, taken: set[str]) -> str:
    life, candidate = 1, name
    while candidate in taken:
        life += 1
        candidate = f"{name}#{life}"
    return candidate


# --- the merged events ----------------------------------------------------------------------------


def _renumbered(merged: Merged) -> Iterator[Envelope]:
    known = [i.starts_ns for i in merged.inputs if i.starts_ns is not None]
    origin = min(known, default=0)
    runs = [
        _timed(part, number, (part.starts_ns or origin) - origin)
        for number, part in enumerate(merged.inputs)
    ]
    expected = [0] * len(merged.inputs)
    next_seq = 0
    for _, number, group, ahead_ns in heapq.merge(*runs, key=lambda timed: timed[:2]):
        part = merged.inputs[number]
        for envelope in group:
            seq = next_seq + envelope.seq - expected[number]
            expected[number], next_seq = envelope.seq + 1, seq + 1
            yield _moved(envelope, seq, part.ranks[envelope.rank], ahead_ns, merged.renamed)


def _timed(
    part: Input, number: int, ahead_ns: int
) -> Iterator[tuple[int, int, list[Envelope], int]]:
    """(wall time, input, events that stay together, its offset), times never falling.

    Until a ring has begun, seqs of events stand for those that left it: nothing may come between.
    """
    latest = 0
    head: list[Envelope] = []
    for envelope in part.source.envelopes():
        latest = max(latest, envelope.t_ns + ahead_ns)
        if envelope.seq <= part.ring_ends:
            head.append(envelope)
            if envelope.seq < part.ring_ends:
                continue
        yield latest, number, head or [envelope], ahead_ns
        head = []


def _moved(
    envelope: Envelope, seq: int, rank: int, ahead_ns: int, names: dict[tuple[int, str], str]
) -> Envelope:
    def name(request: str) -> str:
        return names.get((rank, request), request)

    event = envelope.event
    if isinstance(event, SpanDropped):
        event = moved_mark(event, seq - envelope.seq, name)
    elif names:
        event = renamed(event, name)
    return Envelope(seq, envelope.step, envelope.t_ns + ahead_ns, rank, event)
