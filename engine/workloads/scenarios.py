"""Workloads that have a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...recorder.errors import BadInput
from .default import default_workload
from .spec import Workload

SCENARIOS: Mapping[str, Callable[[int], Workload]] = {"default": default_workload}
"""Workloads by name, made from a seed; the first is what `record` runs unasked."""


def scenario_named(name: str, seed: int) -> Workload:
    """Raises `BadInput` with the names that exist."""
    if name not in SCENARIOS:
        known = ", ".join(SCENARIOS)
        raise BadInput(f"there is no scenario {name!r}; known: {known}")
    return SCENARIOS[name](seed)
