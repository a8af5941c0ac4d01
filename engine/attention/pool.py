"""The paged KV pool: the device memory that block numbers and slots point into."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .kv_store import KVStore, make_store


class LayerShape(NamedTuple):
    """What one layer stores for a token, as observed at its attention call."""

    kv_heads: int
    head_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class HostBlock:
    """One block of some layers in host memory, byte for byte as the device stored it."""

    parts: tuple[Tensor, ...]  # each [block_size, heads, ...]

    def digest(self) -> str:
        """The same as `KVPool.digest` of the block that it was taken from."""
        return _digest(self.parts)

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class KVPool:
    """Keys [num_slots, kv_heads, head_dim] and values [num_slots, kv_heads, value_dim] per layer.

    Slots start as zeros and are never cleared unless by `scrub`: what a freed block held stays
    readable, as in any engine. Reuse is the block pool's business, not this memory's.

    `dtype` is what the model computes in and what is read from here; `kv_dtypes`, one a layer, is
    what is stored. Block numbers count within a KV group, so what concerns whole blocks is told
    the group's layers.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_dtypes: Sequence[str] | None = None,
    ) -> None:
        self.shapes = tuple(shapes)
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        self.dtype = dtype
        self.device = device
        kinds = ("auto",) * len(shapes) if kv_dtypes is None else kv_dtypes
        self._keys: list[KVStore] = []
        self._values: list[KVStore] = []
        for (heads, key_dim, value_dim), kind in zip(shapes, kinds, strict=True):
            for stores, dim in ((self._keys, key_dim), (self._values, value_dim)):
                shape = (self.num_slots, heads, dim)
                stores.append(make_store(kind, shape, dtype=dtype, device=device))

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key [N, kv_heads, head_dim] and value [N, kv_heads, value_dim] at slots [N]."""
        self._keys[layer].write(slots, key)
        self._values[layer].write(slots, value)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Whole blocks [N] of one layer, as [N * block_size, kv_heads, dim] keys and values."""
        return (
            self._keys[layer].gather(blocks, self.block_size),
            self._values[layer].gather(blocks, self.block_size),
        )

    def gather_vectors(self, layer: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """Single vectors [N] of one layer, numbered slot * kv_heads + head, as [N, dim] keys and
        values."""
        return (
            self._keys[layer].gather_vectors(index),
            self._values[layer].gather_vectors(index),
        )

    def all_slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [num_slots, kv_heads, dim] each. Not to be written to."""
        return self._keys[layer].all_slots(), self._values[layer].all_slots()

    def stored(self, layer: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Parts of one layer's keys and of its values, as they are kept: see `KVStore`."""
        return self._keys[layer].parts, self._values[layer].parts

    def scrub(
        self, layers: Iterable[int], blocks: Sequence[int], how: Literal["zero", "nan"]
    ) -> None:
        """Overwrite whole blocks, so that a later read gives zeros or NaN."""
        slots = self._slots_of(blocks)
        for store in self._stores(layers):
            store.clear(slots) if how == "zero" else store.poison(slots)

    def copy(self, layers: Iterable[int], copies: Iterable[tuple[int, int, int]]) -> None:
        """Carry out copies in their order: (source block, destination block, leading slots).

        They are moved as stored, nothing is rounded a second time.
        """
        parts = list(self._parts(layers))
        for source, destination, slots in copies:
            for part in parts:
                self._rows(part, destination)[:slots] = self._rows(part, source)[:slots]

    def digest(self, layers: Iterable[int], block: int) -> str:
        """blake2b, as hex, over all stored bytes of a block."""
        return _digest(self._rows(part, block) for part in self._parts(layers))

    def take(self, layers: Iterable[int], blocks: Sequence[int]) -> tuple[HostBlock, ...]:
        """Copies of blocks, in host memory, each with memory of its own."""
        parts = list(self._parts(layers))
        return tuple(
            HostBlock(tuple(self._rows(part, block).to("cpu", copy=True) for part in parts))
            for block in blocks
        )

    def put(
        self, layers: Iterable[int], blocks: Sequence[int], copies: Sequence[HostBlock]
    ) -> None:
        """Inverse of `take`, into any blocks of the same layers."""
        parts = list(self._parts(layers))
        for block, copy in zip(blocks, copies, strict=True):
            for part, kept in zip(parts, copy.parts, strict=True):
                self._rows(part, block).copy_(kept)

    @property
    def num_bytes(self) -> int:
        """Memory of all layers."""
        return sum(part.nbytes for part in self._parts(range(len(self._keys))))

    def _stores(self, layers: Iterable[int]) -> Iterator[KVStore]:
        for layer in layers:
            yield self._keys[layer]
            yield self._values[layer]

    def _parts(self, layers: Iterable[int]) -> Iterator[Tensor]:
        for store in self._stores(layers):
            yield from store.parts

    def _rows(self, part: Tensor, block: int) -> Tensor:
        """The slots of a block, as a view."""
        return part[block * self.block_size : (block + 1) * self.block_size]

    def _slots_of(self, blocks: Sequence[int]) -> Tensor:
        first = torch.tensor(blocks, dtype=torch.int64, device=self.device) * self.block_size
        return (first[:, None] + torch.arange(self.block_size, device=self.device)).flatten()


def _digest(parts: Iterable[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
