"""Which events somebody asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...recorder.events import Envelope, InputsBuilt, RunStarted, SlotsWritten


@dataclass(slots=True)
class Wanted:
    """Of these kinds, of this request, about this block; what is None restricts nothing.

    An event is about a block that it names anywhere: as its own, in a table that a step was given,
    or by a slot that was written. `see` every event in order, since a slot's block follows from the
    size that the run's header tells.
    """

    kinds: tuple[str, ...] | None = None
    request: str | None = None
    block: int | None = None
    _block_size: int | None = None

    @property
    def everything(self) -> bool:
        return self.kinds is None and self.request is None and self.block is None

    def see(self, envelope: Envelope) -> bool:
        """Whether it is one of them."""
        event = envelope.event
        if isinstance(event, RunStarted):
            self._block_size = event.block_size
        if self.kinds is not None and envelope.kind not in self.kinds:
            return False
        if self.request is not None and self.request not in _requests(event):
            return False
        return self.block is None or self._is_about(event, self.block)

    def _is_about(self, event: Any, block: int) -> bool:
        own = (getattr(event, name, None) for name in ("block", "source", "destination"))
        if block in own or block in (getattr(event, "blocks", None) or ()):
            return True
        if isinstance(event, InputsBuilt):
            return any(block in table for table in event.block_tables)
        if isinstance(event, SlotsWritten) and self._block_size:
            size = self._block_size
            return any(slot >= 0 and slot // size == block for slot in event.slots)
        return False


def _requests(event: Any) -> tuple[str | None, ...]:
    own = (getattr(event, "request", None), getattr(event, "parent", None))
    return *own, *(getattr(event, "requests", None) or ())
