"""One step as the layers of a model meet it: write the step's KV first, then attend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..inputs import GroupInputs, StepInputs
from .pool import KVPool
from .scores import Scoring


class Attention(Protocol):
    """One of the paths, planned for one KV group of one step."""

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; pads get zeros."""
        ...


AttentionPath = Callable[[StepInputs, GroupInputs, KVPool], Attention]
"""How `Attention` is planned."""


class PagedStep:
    """Implements `hook.LayerCall` over a pool; tokens whose slot is -1 are written nowhere."""

    def __init__(self, inputs: StepInputs, pool: KVPool, path: AttentionPath) -> None:
        self._inputs = inputs
        self._pool = pool
        self._groups = [
            _GroupStep(*_written(group, pool.device), path(inputs, group, pool))
            for group in inputs.groups
        ]

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        extras: dict[str, Any],
    ) -> Tensor:
        layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType] -- proved at load
        group = self._groups[self._inputs.group_of(layer)]
        keys, values = by_token(key), by_token(value)
        if group.tokens is not None:
            keys, values = keys[group.tokens], values[group.tokens]
        self._pool.write(layer, group.slots, keys, values)
        scoring = Scoring(scaling, extras.get("softcap"), extras.get("s_aux"))
        out = group.attention.attend(layer, by_token(query), scoring)
        return out.unflatten(0, (query.shape[0], query.shape[2]))


class _GroupStep(NamedTuple):
    slots: Tensor  # [N] where the group's layers write
    tokens: Tensor | None  # [N] which of the step's tokens; None = all
    attention: Attention


def _written(group: GroupInputs, device: torch.device) -> tuple[Tensor, Tensor | None]:
    tokens = np.flatnonzero(group.slot_mapping >= 0)
    slots = torch.from_numpy(group.slot_mapping[tokens]).to(device)
    if len(tokens) == len(group.slot_mapping):
        return slots, None
    return slots, torch.from_numpy(tokens).to(device)


def by_token(states: Tensor) -> Tensor:
    """[lines, heads, longest, dim] as the model has them -> [T, heads, dim] as the step does."""
    return states.transpose(1, 2).flatten(0, 1)
