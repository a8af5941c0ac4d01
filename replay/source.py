"""Where the events of a run come from: a trace file, or a list in memory. Both answer the same."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from ..recorder.errors import NoSuchPosition
from ..recorder.events import Envelope, RunStarted
from ..recorder.memory import MemorySink
from ..recorder.naming import names_request, touches_block
from ..recorder.reader import StepSpan


class EventSource(Protocol):
    """Events in the order of their seqs. `TraceReader` is one, and so is `EnvelopeList`."""

    @property
    def count(self) -> int: ...

    @property
    def last_seq(self) -> int | None: ...

    def envelopes(self, start_seq: int = 0, stop_seq: int | None = None) -> Iterator[Envelope]:
        """Events with start_seq <= seq < stop_seq."""
        ...

    def at(self, seq: int) -> Envelope:
        """Raises NoSuchPosition if there is no event of that number."""
        ...

    def find(
        self,
        *,
        block: int | None = None,
        request: str | None = None,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        """Those of some kinds whose own fields `block` and `request` have these values."""
        ...

    def of_request(
        self,
        request: str,
        *,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        """Those of some kinds that name a request, in a field `request` or in a list."""
        ...

    def touching_block(
        self,
        block: int,
        *,
        group: int = 0,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        """Those of some kinds that are about a block of a KV group, list it, copy it or write into
        it; block tables don't count."""
        ...

    def spans(self, start_seq: int = 0) -> list[StepSpan]:
        """Where the events of each step lie, from `start_seq` on, in the order of their first
        events."""
        ...


class EnvelopeList:
    """A list of envelopes in the order of their seqs; it may go on growing at its end."""

    def __init__(self, envelopes: Sequence[Envelope]) -> None:
        self._envelopes = envelopes

    @property
    def count(self) -> int:
        return len(self._envelopes)

    @property
    def last_seq(self) -> int | None:
        return self._envelopes[-1].seq if self._envelopes else None

    def envelopes(self, start_seq: int = 0, stop_seq: int | None = None) -> Iterator[Envelope]:
        end = len(self._envelopes) if stop_seq is None else self._index(stop_seq)
        return (self._envelopes[i] for i in range(self._index(start_seq), end))

    def at(self, seq: int) -> Envelope:
        found = next(self.envelopes(seq, seq + 1), None)
        if found is None:
            raise NoSuchPosition(f"there is no event {seq}; the last is {self.last_seq}")
        return found

    def find(
        self,
        *,
        block: int | None = None,
        request: str | None = None,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        for envelope in self.envelopes(start_seq, stop_seq):
            if kinds is not None and envelope.kind not in kinds:
                continue
            if block is not None and getattr(envelope.event, "block", None) != block:
                continue
            if request is not None and getattr(envelope.event, "request", None) != request:
                continue
            yield envelope

    def of_request(
        self,
        request: str,
        *,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        found = self.find(kinds=kinds, start_seq=start_seq, stop_seq=stop_seq)
        return (e for e in found if names_request(e.event, request))

    def touching_block(
        self,
        block: int,
        *,
        group: int = 0,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        found = self.find(kinds=kinds, start_seq=start_seq, stop_seq=stop_seq)
        size = self._block_size()
        return (e for e in found if touches_block(e.event, block, group, size))

    def spans(self, start_seq: int = 0) -> list[StepSpan]:
        spans: dict[int, StepSpan] = {}
        for seq, step, *_ in self.envelopes(start_seq):
            known = spans.get(step, StepSpan(step, seq, seq, 0))
            spans[step] = StepSpan(step, known.first_seq, seq, known.events + 1)
        return list(spans.values())

    def _block_size(self) -> int:
        for envelope in self.find(kinds=[RunStarted.__name__]):
            if isinstance(envelope.event, RunStarted):
                return envelope.event.block_size
        return 0

    def _index(self, seq: int) -> int:
        return bisect_left(self._envelopes, seq, key=lambda envelope: envelope.seq)


def source_of(events: EventSource | MemorySink | Sequence[Envelope]) -> EventSource:
    """An event source, from whatever holds a run's events."""
    if isinstance(events, MemorySink):
        return EnvelopeList(events.envelopes)
    if isinstance(events, Sequence):
        return EnvelopeList(events)
    return events
