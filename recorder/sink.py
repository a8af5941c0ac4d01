"""Where an engine puts its events."""

from __future__ import annotations

from typing import Protocol

from .events import Event


class Sink(Protocol):
    """The emitter names the step; the sink gives seq, time and rank."""

    def emit(self, event: Event, step: int) -> None: ...
