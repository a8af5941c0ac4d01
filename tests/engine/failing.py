"""A runner whose steps fail when a test says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.runner import Runner, StepOutput

When = Literal["before writing", "after writing some", "after writing all"]

MOMENTS: tuple[When, ...] = ("before writing", "after writing some", "after writing all")


class DeviceLost(RuntimeError):
    """What the runner raises."""


class FailingRunner:
    """Raises in the steps it is told to, at the moment it is told to."""

    def __init__(self, inner: Runner, failures: dict[int, When]) -> None:
        self._inner = inner
        self._failures = failures
        self.failed: dict[int, When] = {}

    def __getattr__(self, name: str) -> Any:
        """All else is the inner one's."""
        return getattr(self._inner, name)

    def execute(self, inputs: StepInputs) -> StepOutput:
        when = self._failures.get(inputs.step)
        if when is None:
            return self._inner.execute(inputs)
        self.failed[inputs.step] = when
        if when == "after writing all":
            self._inner.execute(inputs)
        elif when == "after writing some":
            self._inner.execute(with_half_of_its_writes(inputs))
        raise DeviceLost(f"device lost in step {inputs.step}")


def with_half_of_its_writes(inputs: StepInputs) -> StepInputs:
    groups = []
    for group in inputs.groups:
        slots = np.array(group.slot_mapping)
        slots[len(slots) // 2 :] = -1
        groups.append(replace(group, slot_mapping=slots))
    return replace(inputs, groups=tuple(groups))
