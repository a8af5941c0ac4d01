"""Follows a trace that another process is writing.

Each look opens the file, reads what was committed since, and lets go of it again: a writer is never
kept waiting, and can leave a single file behind although somebody follows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from .errors import KvrewindError, UnreadableTrace
from .events import Envelope
from .presence import identity_of, is_being_written
from .reader import TraceReader
from .stores.address import Place, place_of

End = Literal["ended", "abandoned", "silent", "damaged", "removed", "replaced"]
"""Why nothing more will come: the run ended; its writer is gone without an end record; nothing came
for as long as somebody was ready to wait; what comes next can't be trusted (`Follower.problem` says
why); the file has no name any more; another file has it."""

LOOK_EVERY_S = 0.15

GONE_AFTER_S = 1.0
"""For how long there must be no writer: one that has just begun has no claim yet."""

_EVENTS_AT_ONCE = 20_000
"""A look that finds more gives them in parts, so that the first are not kept back."""

_TRIES = 5
"""Looks in a row that may fail: a file is unreadable for a moment while it is folded into one."""


class Look(NamedTuple):
    """What was found: whole steps, in order, and why there will be no more, if so."""

    envelopes: list[Envelope]
    end: End | None


class Follower:
    """Reads a growing trace from event `from_seq` on.

    Raises what `TraceReader` raises. `idle_s`: how long a trace may stand still before it counts as
    silent; None for ever. `now` is a clock in seconds.
    """

    def __init__(
        self,
        path: Place | str,
        from_seq: int = 0,
        *,
        idle_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = place_of(path)
        self.next_seq = from_seq
        self.problem: str | None = None
        self._idle_s = idle_s
        self._now = now
        with TraceReader(self.path):
            self._identity = self._file_now()
        self.was_live = self._may_have_a_writer()
        """Whether it was being written when this began, as far as that can be known."""
        self._moved_at = now()
        self._seen_writer_at = now()
        self._failures = 0

    def look(self) -> Look:
        """What was committed since the last look.

        Raises what `TraceReader` raises where the file can't even be opened any more.
        """
        if moved := self._moved_away():
            return Look([], moved)
        if self._may_have_a_writer():
            self._seen_writer_at = self._now()
        try:
            envelopes, is_last, has_end = self._read()
        except KvrewindError as error:
            if moved := self._moved_away():
                return Look([], moved)
            self._failures += 1
            if self._failures < _TRIES:
                return Look([], None)
            if not isinstance(error, UnreadableTrace):
                raise
            return self._up_to_the_damage()
        self._failures = 0
        if moved := self._moved_away():
            return Look([], moved)  # what was read may be the other file's
        if envelopes:
            self.next_seq = envelopes[-1].seq + 1
            self._moved_at = self._now()
        return Look(envelopes, self._end(has_end) if is_last else None)

    def _read(self) -> tuple[list[Envelope], bool, bool]:
        """New events; whether these are all that there are; whether the writer came to its end."""
        with TraceReader(self.path) as reader:
            has_end = reader.end is not None  # first: behind it nothing is added
            stop = self.next_seq + _EVENTS_AT_ONCE
            envelopes = list(reader.envelopes(self.next_seq, stop))
            last = reader.last_seq
            if last is not None and last >= stop and not envelopes:
                # a gap that long: events were dropped, or a ring has overtaken us
                envelopes = list(islice(reader.envelopes(stop), _EVENTS_AT_ONCE))
            is_last = last is None or (bool(envelopes) and envelopes[-1].seq >= last) or last < stop
            return envelopes, is_last, has_end

    def _up_to_the_damage(self) -> Look:
        with TraceReader(self.path) as reader:
            self.problem = next(iter(reader.problems), None)  # finds out what can be trusted
            return Look(list(reader.envelopes(self.next_seq)), "damaged")

    def _end(self, has_end: bool) -> End | None:
        now = self._now()
        if has_end:
            return "ended"
        if now - max(self._seen_writer_at, self._moved_at) >= GONE_AFTER_S:
            return "abandoned"
        if self._idle_s is not None and now - self._moved_at >= self._idle_s:
            return "silent"
        return None

    def _may_have_a_writer(self) -> bool:
        """Of a run in a database nobody knows."""
        return not isinstance(self.path, Path) or is_being_written(self.path) is not False

    def _file_now(self) -> tuple[int, int] | None:
        return identity_of(self.path) if isinstance(self.path, Path) else None

    def _moved_away(self) -> End | None:
        now = self._file_now()
        if now == self._identity:
            return None
        return "removed" if now is None else "replaced"
