"""One step as the layers of a model meet it: write the step's KV first, then attend."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..inputs import IntArray, StepInputs
from .pool import KVPool


class Attention(Protocol):
    """One of the two paths, planned for one step."""

    def attend(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]."""
        ...


class PagedStep:
    """Implements `hook.LayerCall` over a pool; tokens whose slot is -1 are written nowhere."""

    def __init__(self, inputs: StepInputs, pool: KVPool, attention: Attention) -> None:
        self._pool = pool
        self._attention = attention
        self._inputs = inputs
        self._writes = [_writes(group.slot_mapping, pool.device) for group in inputs.groups]

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
        keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        slots, written = self._writes[self._inputs.group_of(layer)]
        if written is not None:
            keys, values = keys[written], values[written]
        self._pool.write(layer, slots, keys, values)
        return self._attention.attend(layer, query[0].transpose(0, 1), scaling)[None]


def _writes(slot_mapping: IntArray, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The slots that are written, and which tokens go there; None: all of them."""
    written = np.flatnonzero(slot_mapping >= 0)
    slots = torch.from_numpy(slot_mapping[written]).to(device)
    partial = len(written) < len(slot_mapping)
    return slots, torch.from_numpy(written).to(device) if partial else None
