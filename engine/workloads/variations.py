"""The same requests, asked otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...recorder.errors import BadInput
from ..request import Prompt
from .spec import PromptSpec


def faster(specs: Sequence[PromptSpec], speed: float) -> tuple[PromptSpec, ...]:
    """Arrivals in seconds come `speed` times as fast; those by step stay. Raises `BadInput`."""
    if not 0 < speed < float("inf"):
        raise BadInput(f"speed must be above 0, not {speed}")
    return tuple(
        spec if spec.arrival_s is None else replace(spec, arrival_s=spec.arrival_s / speed)
        for spec in specs
    )


def without_priorities(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    return tuple(replace(prompt, priority=0) for prompt in prompts)
