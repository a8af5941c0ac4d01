"""One step as the layers of a model meet it: write the step's KV first, then attend."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..inputs import StepInputs
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
        written = np.flatnonzero(inputs.slot_mapping >= 0)
        self._slots = torch.from_numpy(inputs.slot_mapping[written]).to(pool.device)
        partial = len(written) < len(inputs.slot_mapping)
        self._written = torch.from_numpy(written).to(pool.device) if partial else None

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
        if self._written is not None:
            keys, values = keys[self._written], values[self._written]
        self._pool.write(layer, self._slots, keys, values)
        return self._attention.attend(layer, query[0].transpose(0, 1), scaling)[None]
