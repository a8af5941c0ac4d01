"""A runner that waits to be let through, so that a test knows in which step an engine is."""

from __future__ import annotations

import threading
from typing import Any

from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.runner import Runner, StepOutput

PATIENCE_S = 30.0
"""A test that hangs fails after this long."""


class GatedRunner:
    """Each step waits at the gate; `let_through` opens it for some, `open` for all."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._passes = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._is_open = False

    def __getattr__(self, name: str) -> Any:
        """All else is the inner one's."""
        return getattr(self._inner, name)

    def execute(self, inputs: StepInputs) -> StepOutput:
        if not self._is_open:
            self._arrived.release()
            assert self._passes.acquire(timeout=PATIENCE_S), "nobody opened the gate"
        return self._inner.execute(inputs)

    def wait_for_step(self) -> None:
        """Returns once a step waits at the gate that didn't at the last call."""
        assert self._arrived.acquire(timeout=PATIENCE_S), "no step came to the gate"

    def let_through(self, steps: int = 1) -> None:
        self._passes.release(steps)

    def open(self) -> None:
        self._is_open = True
        self._passes.release()
