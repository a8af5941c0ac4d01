"""What a recording keeps: all of the run or its end, and what of it when the store is too slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..recorder.errors import BadInput
from ..recorder.handover import QUEUE_EVENTS, WhenFull
from ..recorder.ring import Ring
from ..recorder.ring_limit import RingLimit
from ..recorder.stores.address import Place
from ..recorder.writer import TraceWriter
from ..replay.ring_state import RingState


@dataclass(frozen=True, slots=True)
class Keep:
    """How to record. `buffer`: how many events may wait for the store."""

    when_full: WhenFull = "block"
    buffer: int = QUEUE_EVENTS
    ring: RingLimit | None = None

    @classmethod
    def of(cls, when_full: WhenFull, buffer: int, ring: str | None) -> Keep:
        """Raises BadInput."""
        if buffer < 1:
            raise BadInput(f"--buffer must be at least 1, not {buffer}")
        return cls(when_full, buffer, None if ring is None else RingLimit.parse(ring))

    def writer(self, path: Place, *, force: bool) -> TraceWriter:
        """Raises what TraceWriter does."""
        ring = None if self.ring is None else Ring(self.ring, RingState())
        return TraceWriter(
            path, force=force, when_full=self.when_full, queue_events=self.buffer, ring=ring
        )


def remarks(writer: TraceWriter) -> Iterator[str]:
    """What became of a recording, if not just what was asked for: a sentence each."""
    if writer.failure is not None:
        yield str(writer.failure)
    if writer.dropped:
        yield (
            f"{writer.dropped} events found no room and are not in {writer.path}, which says so; "
            "record to a faster disk, with a larger --buffer, or with --when-full block"
        )
    if writer.frozen is not None:
        where = f"{writer.frozen.step}:{writer.frozen.seq}"
        yield f"{writer.path} was frozen at {where} ({writer.frozen.reason}); the run went on"
