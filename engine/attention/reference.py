"""The reference path: softmax(Q K^T * scale + mask) V over the whole pool, in plain torch.

One explicit rows x slots mask decides what every query sees. Slow and plain on purpose: a wrong
mask is wrong here as it is written down in the trace.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..inputs import BoolArray, StepInputs
from .pool import KVPool

QUERIES_AT_ONCE = 128
"""Bounds the scores to heads x 128 x num_slots; has no influence on the result."""


class ReferenceAttention:
    """Attention of one step. `GroupInputs.mask` [T, num_slots] is required: True = visible."""

    def __init__(self, inputs: StepInputs, pool: KVPool) -> None:
        self._pool = pool
        self._inputs = inputs
        self._masks = [_additive(group.mask, pool.device) for group in inputs.groups]

    def attend(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; the step's KV is in the pool."""
        whole = self._masks[self._inputs.group_of(layer)]
        parts = zip(query.split(QUERIES_AT_ONCE), whole.split(QUERIES_AT_ONCE), strict=True)
        return torch.cat([self._attend(layer, q, mask, scaling) for q, mask in parts])

    def _attend(self, layer: int, query: Tensor, mask: Tensor, scaling: float) -> Tensor:
        keys, values = self._pool.all_slots(layer)  # [slots, kv_heads, dim]
        by_group = query.unflatten(1, (keys.shape[1], -1))  # [T, kv_heads, group, dim]
        scores = torch.einsum("thgd,shd->hgts", by_group, keys).float() * scaling
        weights = torch.softmax(scores + mask, dim=-1).to(values.dtype)
        return torch.einsum("hgts,shd->thgd", weights, values).flatten(1, 2)


def _additive(mask: BoolArray | None, device: torch.device) -> Tensor:
    """[T, num_slots]: 0 where visible, -inf elsewhere."""
    assert mask is not None, "the reference path attends by an explicit mask"
    additive = torch.zeros(mask.shape, dtype=torch.float32, device=device)
    return additive.masked_fill_(~torch.from_numpy(mask).to(device), float("-inf"))
