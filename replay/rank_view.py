"""One rank of a merged trace, as though it were a trace of its own: with the same seqs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from ..recorder.events import Envelope
from ..recorder.reader import StepSpan
from .source import EventSource
from .timeline import Timeline


class RankView:
    """The events of one rank. An `EventSource`."""

    def __init__(self, source: EventSource, rank: int) -> None:
        self._source = source
        self._rank = rank

    @property
    def count(self) -> int:
        return sum(1 for _ in self.envelopes())

    @property
    def last_seq(self) -> int | None:
        return self._source.last_seq

    def envelopes(self, start_seq: int = 0, stop_seq: int | None = None) -> Iterator[Envelope]:
        return self._own(self._source.envelopes(start_seq, stop_seq))

    def at(self, seq: int) -> Envelope:
        return self._source.at(seq)

    def find(
        self,
        *,
        block: int | None = None,
        request: str | None = None,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        return self._own(
            self._source.find(
                block=block, request=request, kinds=kinds, start_seq=start_seq, stop_seq=stop_seq
            )
        )

    def of_request(
        self,
        request: str,
        *,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        return self._own(
            self._source.of_request(request, kinds=kinds, start_seq=start_seq, stop_seq=stop_seq)
        )

    def touching_block(
        self,
        block: int,
        *,
        group: int = 0,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        return self._own(
            self._source.touching_block(
                block, group=group, kinds=kinds, start_seq=start_seq, stop_seq=stop_seq
            )
        )

    def spans(self, start_seq: int = 0) -> list[StepSpan]:
        spans: dict[int, StepSpan] = {}
        for seq, step, *_ in self.envelopes(start_seq):
            known = spans.get(step, StepSpan(step, seq, seq, 0))
            spans[step] = StepSpan(step, known.first_seq, seq, known.events + 1)
        return list(spans.values())

    def _own(self, envelopes: Iterable[Envelope]) -> Iterator[Envelope]:
        return (envelope for envelope in envelopes if envelope.rank == self._rank)


class Ranks:
    """The timelines of a trace's ranks, each made when it is asked for."""

    def __init__(self, whole: Timeline) -> None:
        self._whole = whole
        self._made: dict[int, Timeline] = {}

    def at(self, seq: int) -> Timeline:
        """That of the rank which the event belongs to; the whole one where there is only one."""
        if not self._are_several:
            return self._whole
        rank = self._whole.at(seq).rank
        if rank not in self._made:
            self._made[rank] = Timeline(RankView(self._whole.source, rank))
        return self._made[rank]

    @cached_property
    def _are_several(self) -> bool:
        """Another rank may begin after the event that is asked about."""
        last = self._whole.last_seq
        return last is not None and bool(self._whole.state_at(last).aside)
