"""Where an engine puts its events."""

from __future__ import annotations

from typing import Protocol

from .events import Event


class Sink(Protocol):
    """The emitter names the step; the sink gives seq, time and rank."""

    def emit(self, event: Event, step: int) -> None: ...


class NullSink:
    """Where nobody listens. An emitter that finds `listening` False may leave out the making of
    events; a sink without it listens."""

    listening = False

    def emit(self, event: Event, step: int) -> None:
        pass
