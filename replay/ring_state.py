"""The run's state beside a recorder that keeps only its end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..recorder.events import Envelope
from .reducer import apply
from .snapshot import compacted, dump
from .state import State


class RingState:
    """A `Keyframer`: folds what is recorded, and forgets what can't matter any more."""

    def __init__(self) -> None:
        self._state = State()

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            apply(self._state, envelope)

    def requests(self) -> Collection[str]:
        """Now and then it lets go of what was overwritten, and of requests that are over."""
        self._state = compacted(self._state)
        return self._state.requests.keys()

    def state(self) -> str:
        return dump(self._state)
