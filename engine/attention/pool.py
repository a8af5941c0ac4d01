"""The paged KV pool: the device memory that block numbers and slots point into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LayerShape(NamedTuple):
    """What one layer stores for a token, as observed at its attention call."""

    kv_heads: int
    head_dim: int
    value_dim: int


class KVPool:
    """Keys [num_slots, kv_heads, head_dim] and values [num_slots, kv_heads, value_dim] per layer.

    Slots start as zeros and are never cleared: what a freed block held stays readable, as in any
    engine. Reuse is the block pool's business, not this memory's.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        self.dtype = dtype
        self.device = device
        self.keys = [
            torch.zeros(self.num_slots, s.kv_heads, s.head_dim, dtype=dtype, device=device)
            for s in shapes
        ]
        self.values = [
            torch.zeros(self.num_slots, s.kv_heads, s.value_dim, dtype=dtype, device=device)
            for s in shapes
        ]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key [N, kv_heads, head_dim] and value [N, kv_heads, value_dim] at slots [N]."""
        self.keys[layer].index_copy_(0, slots, key.to(self.dtype))
        self.values[layer].index_copy_(0, slots, value.to(self.dtype))

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Whole blocks [N] of one layer, as [N * block_size, kv_heads, dim] keys and values.

        Copying blocks and not slots keeps each copy a few kilobytes long: several times faster.
        """
        return _gather(self.keys[layer], blocks, self.block_size), _gather(
            self.values[layer], blocks, self.block_size
        )


def _gather(slots: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    num_slots, heads, dim = slots.shape
    by_block = slots.view(num_slots // block_size, -1)
    return by_block.index_select(0, blocks).view(-1, heads, dim)
