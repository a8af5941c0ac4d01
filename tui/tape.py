"""Events by seq, a page at a time: what a list of a million rows reads from."""

from __future__ import annotations

from collections import OrderedDict

from ..recorder.errors import UnreadableTrace
from ..recorder.events import Envelope
from ..replay.source import EventSource

PAGE = 128
"""Events read at once; a screen shows a part of one."""

PAGES_KEPT = 64


class Tape:
    """Random access to the events of a source.

    A seq that was dropped has no event, and neither has one in a damaged part of the file: that
    the reader met damage is the whole trace's affair (`problems`), not a line's.
    """

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._pages: OrderedDict[int, dict[int, Envelope]] = OrderedDict()
        self._widths: tuple[int, int] | None = None
        self.last_seq = source.last_seq or 0
        self.first_seq = self.next(-1) or 0

    def grow(self, last_seq: int) -> None:
        """There are more events now."""
        # the page of the old end was read when it was shorter
        self._pages.pop(self.last_seq // PAGE, None)
        for number in [n for n in self._pages if n > self.last_seq // PAGE]:
            del self._pages[number]
        self.last_seq = last_seq
        self._widths = None

    @property
    def widths(self) -> tuple[int, int]:
        """Digits of the last seq and of its step."""
        if self._widths is None:
            last = self.get(self.last_seq)
            self._widths = len(str(self.last_seq)), len(str(last.step if last else 0))
        return self._widths

    def get(self, seq: int) -> Envelope | None:
        return self._page(seq // PAGE).get(seq)

    def next(self, seq: int) -> int | None:
        """The seq of the event after `seq`; None at the end."""
        if self.get(seq + 1) is not None:
            return seq + 1
        try:
            found = next(iter(self._source.envelopes(seq + 1)), None)
        except UnreadableTrace:
            return None
        return None if found is None else found.seq

    def previous(self, seq: int) -> int | None:
        """The seq of the event before `seq`; None at the beginning."""
        for page in range((seq - 1) // PAGE, -1, -1):
            before = [known for known in self._page(page) if known < seq]
            if before:
                return before[-1]
        return None

    def _page(self, number: int) -> dict[int, Envelope]:
        found = self._pages.get(number)
        if found is None:
            found = self._pages[number] = self._read(number * PAGE)
            if len(self._pages) > PAGES_KEPT:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(number)
        return found

    def _read(self, start: int) -> dict[int, Envelope]:
        try:
            return {e.seq: e for e in self._source.envelopes(start, start + PAGE)}
        except UnreadableTrace:
            return {}
