"""What time it is in a run: by the wall, or by a stated model of what a step costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Protocol

from ..recorder.errors import BadInput


class RowWork(Protocol):
    """What the clock needs to know of one row of a step."""

    @property
    def query_len(self) -> int: ...

    @property
    def seq_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes; a step without rows computes nothing.

    `tokens` of all rows, and the `context` that they attend to: each row's sequence length,
    counted once a row.
    """

    tokens: int = 0
    context: int = 0

    @classmethod
    def of(cls, rows: Iterable[RowWork]) -> StepWork:
        shapes = [(row.query_len, row.seq_len) for row in rows]
        return cls(sum(q for q, _ in shapes), sum(s for _, s in shapes))


class Clock(Protocol):
    """Seconds since the run began. The engine asks, waits, and says what its steps were."""

    def now(self) -> float: ...

    def wait_until(self, seconds: float) -> None:
        """Return when `now()` has reached `seconds`. Called when nobody is at work."""
        ...

    def step_done(self, work: StepWork) -> None:
        """The device has completed a step."""
        ...


class WallClock:
    """The time of the machine, from when the clock was made."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._start = monotonic()

    def now(self) -> float:
        return self._monotonic() - self._start

    def wait_until(self, seconds: float) -> None:
        while (left := seconds - self.now()) > 0:
            self._sleep(left)

    def step_done(self, work: StepWork) -> None:
        """The step took its time by itself."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step takes on the device, by a roofline:

        max(weights_s, tokens x token_s) + context x context_token_s

    and `host_s` to schedule and launch it. The defaults are worked out, not measured, for Llama 3
    8B (8.03e9 parameters, 32 layers, 8 KV heads of 128) in bfloat16 on one A100 80GB (datasheet:
    2039 GB/s, 312 TFLOP/s, of which half is taken as reached):

        weights_s         8.03e9 x 2 bytes / 2039e9             every step reads the weights once
        token_s           8.03e9 x 2 / (0.5 x 312e12)           2 operations a parameter and token
        context_token_s   2 x 32 x 8 x 128 x 2 bytes / 2039e9   keys and values are read once a row
        host_s            a round figure for a scheduler in Python
    """

    weights_s: float = 7.9e-3
    token_s: float = 1.03e-4
    context_token_s: float = 6.4e-8
    host_s: float = 1e-3

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not 0 <= value <= 3600:
                raise BadInput(f"{f.name} must be from 0 to 3600 seconds, not {value}")
        if self.host_s == 0 and self.weights_s == 0:
            raise BadInput("weights_s and host_s can't both be 0: a step would take no time")

    def device_s(self, work: StepWork) -> float:
        if not work.tokens:
            return 0.0
        return max(self.weights_s, work.tokens * self.token_s) + work.context * self.context_token_s


class SimulatedClock:
    """Time passes by what steps cost, and jumps where nobody is at work.

    With two steps in flight the host prepares the next step while the device computes, so that
    a step takes the longer of both and not their sum.
    """

    def __init__(self, cost: StepCost | None = None, steps_in_flight: int = 1) -> None:
        self._cost = cost or StepCost()
        self._overlapped = steps_in_flight > 1
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, seconds: float) -> None:
        self._now = max(self._now, seconds)

    def step_done(self, work: StepWork) -> None:
        device, host = self._cost.device_s(work), self._cost.host_s
        self._now += max(device, host) if self._overlapped else device + host
