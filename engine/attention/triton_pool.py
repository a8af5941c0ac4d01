"""The KV pool on a GPU: the same memory, written, scrubbed and digested by kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from .kernels.digest import digest_blocks, digest_on_host
from .kernels.scrub import scrub_blocks
from .kernels.slot_write import write_slots
from .pool import HostBlock, KVPool


class TritonHostBlock(HostBlock):
    """A block in host memory whose digest is that of the kernel."""

    def digest(self) -> str:
        return digest_on_host(self.parts)


class TritonPool(KVPool):
    """As `KVPool`, but digests are those of `kernels.digest`, and slots of -1 are no error:
    nothing is written there."""

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        keys, values = self.stored(layer)
        write_slots(keys, slots, key)
        write_slots(values, slots, value)

    def scrub(
        self, layers: Iterable[int], blocks: Sequence[int], how: Literal["zero", "nan"]
    ) -> None:
        numbers = self._on_device(blocks)
        for layer in layers:
            for parts in self.stored(layer):
                scrub_blocks(parts, numbers, self.block_size, how)

    def digest(self, layers: Iterable[int], block: int) -> str:
        parts = [part for layer in layers for store in self.stored(layer) for part in store]
        (digest,) = digest_blocks(parts, self._on_device([block]), self.block_size)
        return digest

    def take(self, layers: Iterable[int], blocks: Sequence[int]) -> tuple[HostBlock, ...]:
        return tuple(TritonHostBlock(block.parts) for block in super().take(layers, blocks))

    def _on_device(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.device)
