"""One tensor of the cache, the keys or the values of a layer, in the precision it is kept in."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from .quantize import INT4_LEVELS, INT8_LEVELS, dequantize, pack, quantize, unpack


class KVStore(ABC):
    """Vectors [num_slots, heads, dim]: written and read as `dtype`, stored in `parts`.

    Each part is [num_slots, heads, ...] and holds all that is stored of a slot in its row, so
    that what moves whole slots needs to know nothing of precision.
    """

    parts: tuple[Tensor, ...]

    @abstractmethod
    def write(self, slots: Tensor, vectors: Tensor) -> None:
        """Store vectors [N, heads, dim] at slots [N]."""

    @abstractmethod
    def read(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Rows of the parts [N, heads, ...] -> [N, heads, dim]; or single vectors of them."""

    @abstractmethod
    def poison(self, slots: Tensor) -> None:
        """Make every vector at slots [N] read as NaN."""

    def gather(self, blocks: Tensor, block_size: int) -> Tensor:
        """Whole blocks [N] -> [N * block_size, heads, dim].

        Copying blocks and not slots keeps each copy a few kilobytes long: several times faster.
        """
        return self.read(tuple(_gather(part, blocks, block_size) for part in self.parts))

    def gather_vectors(self, index: Tensor) -> Tensor:
        """Single vectors [N], numbered slot * heads + head -> [N, dim]."""
        return self.read(tuple(part.flatten(0, 1).index_select(0, index) for part in self.parts))

    def all_slots(self) -> Tensor:
        """[num_slots, heads, dim]."""
        return self.read(self.parts)

    def clear(self, slots: Tensor) -> None:
        """Make every vector at slots [N] read as zeros."""
        for part in self.parts:
            part.index_fill_(0, slots, 0)


class PlainStore(KVStore):
    """Stored as floating point. What is beyond the range of `stored` becomes infinite, as ever."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        dtype: torch.dtype,
        stored: torch.dtype,
        device: torch.device,
    ) -> None:
        self._dtype = dtype
        self._vectors = torch.zeros(shape, dtype=stored, device=device)
        self.parts = (self._vectors,)

    def write(self, slots: Tensor, vectors: Tensor) -> None:
        self._vectors.index_copy_(0, slots, vectors.to(self._vectors.dtype))

    def read(self, parts: tuple[Tensor, ...]) -> Tensor:
        return parts[0].to(self._dtype)

    def poison(self, slots: Tensor) -> None:
        self._vectors.index_fill_(0, slots, torch.nan)


class QuantizedStore(KVStore):
    """Stored as integers of `bits` 8 or 4, with a scale per slot and head."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        dtype: torch.dtype,
        bits: int,
        device: torch.device,
    ) -> None:
        num_slots, heads, self._dim = shape
        self._dtype = dtype
        self._packed = bits == 4
        self._levels = INT4_LEVELS if self._packed else INT8_LEVELS
        width = -(-self._dim // 2) if self._packed else self._dim
        self._codes = torch.zeros(num_slots, heads, width, dtype=torch.int8, device=device)
        self._scales = torch.zeros(num_slots, heads, 1, dtype=torch.float32, device=device)
        self.parts = (self._codes, self._scales)

    def write(self, slots: Tensor, vectors: Tensor) -> None:
        codes, scales = quantize(vectors, self._levels)
        self._codes.index_copy_(0, slots, pack(codes) if self._packed else codes)
        self._scales.index_copy_(0, slots, scales)

    def read(self, parts: tuple[Tensor, ...]) -> Tensor:
        codes, scales = parts
        if self._packed:
            codes = unpack(codes, self._dim)
        return dequantize(codes, scales, self._dtype)

    def poison(self, slots: Tensor) -> None:
        self.clear(slots)
        self._scales.index_fill_(0, slots, torch.nan)


def make_store(
    kv_dtype: str, shape: tuple[int, int, int], *, dtype: torch.dtype, device: torch.device
) -> KVStore:
    """`kv_dtype` as in `EngineConfig`, for one layer; `dtype` is what the model computes in."""
    match kv_dtype:
        case "int8":
            return QuantizedStore(shape, dtype=dtype, bits=8, device=device)
        case "int4":
            return QuantizedStore(shape, dtype=dtype, bits=4, device=device)
        case _:
            stored = dtype if kv_dtype == "auto" else getattr(torch, kv_dtype)
            return PlainStore(shape, dtype=dtype, stored=stored, device=device)


def _gather(part: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    num_slots, heads, width = part.shape
    by_block = part.view(num_slots // block_size, -1)
    return by_block.index_select(0, blocks).view(-1, heads, width)
