"""A sink that keeps the envelopes in a list: tests, bisect trials, symbolic runs."""

from __future__ import annotations

import time

from .digest import step_digests
from .events import Envelope, Event


class MemorySink:
    """Same rule for seq and t_ns as the trace writer."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self._start_ns = time.perf_counter_ns()

    def emit(self, event: Event, step: int) -> None:
        t_ns = time.perf_counter_ns() - self._start_ns
        self.envelopes.append(Envelope(len(self.envelopes), step, t_ns, 0, event))

    def step_digests(self) -> dict[int, bytes]:
        """Step -> chained digest, equal to what a trace of the same events stores."""
        return {closed.step: closed.digest for closed in step_digests(self.envelopes)}
