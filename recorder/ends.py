"""Whether a recording came to its end."""

from __future__ import annotations

from collections.abc import Iterable

from .events import Envelope, RunEnded, RunStarted


class Ends:
    """Of a trace with several ranks: whether every run in it did that began."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._saw_end = False

    def see(self, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            kind = type(envelope.event)
            if kind is RunStarted:
                self._running.add(envelope.rank)
            elif kind is RunEnded:
                self._running.discard(envelope.rank)
                self._saw_end = True

    @property
    def is_complete(self) -> bool:
        return self._saw_end and not self._running
