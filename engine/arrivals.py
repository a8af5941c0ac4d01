"""Prompts that were handed in and aren't due yet: by step, or by the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from .admission import PromptRefused
from .clock import Clock
from .request import Prompt


class Arrivals:
    """Gives out what is due, in the order handed in.

    A prompt with `arrival_s` is due when the clock has reached it, others at their `arrival_step`.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._count = 0
        self._by_step: list[tuple[float, int, Prompt]] = []
        self._by_second: list[tuple[float, int, Prompt]] = []
        """Heaps of (when, order of handing in, prompt)."""

    def __len__(self) -> int:
        return len(self._by_step) + len(self._by_second)

    def __iter__(self) -> Iterator[Prompt]:
        """In no particular order."""
        yield from (prompt for _, _, prompt in self._by_step)
        yield from (prompt for _, _, prompt in self._by_second)

    def add(self, prompts: Sequence[Prompt]) -> None:
        """All of them or none. Raises `PromptRefused` for seconds where there is no clock."""
        timed = [prompt.request for prompt in prompts if prompt.arrival_s is not None]
        if timed and self._clock is None:
            raise PromptRefused(
                f"request {timed[0]!r} arrives in seconds, but the engine has no clock; give it "
                "one, or an arrival_step"
            )
        for prompt in prompts:
            self._count += 1
            if prompt.arrival_s is None:
                heappush(self._by_step, (prompt.arrival_step, self._count, prompt))
            else:
                heappush(self._by_second, (prompt.arrival_s, self._count, prompt))

    def take_due(self, step: int) -> tuple[Prompt, ...]:
        due = [*_up_to(self._by_step, step)]
        if self._by_second and self._clock is not None:
            due += _up_to(self._by_second, self._clock.now())
        return tuple(prompt for _, prompt in sorted(due, key=lambda entry: entry[0]))

    def idle_until_next(self, step: int) -> int:
        """With nobody at work: the step (from `step` on) behind which the next prompt arrives.

        Steps pass at once; where only seconds will bring somebody, waits for them.
        """
        if self._by_step:
            return max(step, int(self._by_step[0][0]) - 1)
        if self._by_second and self._clock is not None:
            self._clock.wait_until(self._by_second[0][0])
        return step


def _up_to(heap: list[tuple[float, int, Prompt]], when: float) -> Iterator[tuple[int, Prompt]]:
    """Takes what is due out of the heap: (order of handing in, prompt)."""
    while heap and heap[0][0] <= when:
        _, order, prompt = heappop(heap)
        yield order, prompt
