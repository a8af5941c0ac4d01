"""A 128-bit digest of what a block holds, byte for byte, without moving it off the device.

The parts of a block are read as 64-bit words, little end first, the last of each part filled up
with zeros. Word w at place i (counted over all parts) adds in 64 bits, wrapping,

    lane 0   mixed(w * A0 + (i + 1) * B0)
    lane 1   mixed(w * A1 + (i + 1) * B1)

where `mixed` is the finaliser of splitmix64 (Steele et al. 2014): a sum of terms that each depend
on a word and its place, so that it may be taken in any order and is the same on any device. It
finds accidents, not adversaries.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# what stands in a kernel is triton's language, which has other types than Python's

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from .tiles import LAUNCH

CHUNK = 256
"""Words that a program adds up."""

A0, B0 = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
A1, B1 = 0xC2B2AE3D27D4EB4F, 0xDA942042E4DD58B5
M1, M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

_A0, _B0 = tl.constexpr(A0), tl.constexpr(B0)
_A1, _B1 = tl.constexpr(A1), tl.constexpr(B1)
_M1, _M2 = tl.constexpr(M1), tl.constexpr(M2)


def digest_blocks(parts: Sequence[Tensor], blocks: Tensor, block_size: int) -> list[str]:
    """[N] digests of blocks [N], each over all `parts` [num_slots, heads, ...] in their order."""
    lanes = torch.zeros(len(blocks), 2, dtype=torch.int64, device=blocks.device)
    place = 0
    for part in parts:
        flat = part.view(torch.uint8).view(part.shape[0] // block_size, -1)  # [num_blocks, bytes]
        words = triton.cdiv(flat.shape[1], 8)
        chunks = triton.cdiv(words, CHUNK)
        sums = lanes.new_empty(len(blocks), chunks, 2)
        _add_words[(len(blocks), chunks)](
            flat, blocks, sums, flat.shape[1], place, chunks, CHUNK_SIZE=CHUNK, **LAUNCH
        )
        lanes += sums.sum(dim=1)
        place += words
    return [_hex(np.asarray(pair, dtype=np.int64).view(np.uint64)) for pair in lanes.tolist()]


def digest_on_host(parts: Iterable[Tensor]) -> str:
    """The same for one block in host memory, each part [block_size, heads, ...]."""
    words = np.concatenate([*_words(parts)])
    place = np.arange(1, len(words) + 1, dtype=np.uint64)
    lanes = [
        _mixed_on_host(words * np.uint64(a) + place * np.uint64(b)).sum(dtype=np.uint64)
        for a, b in ((A0, B0), (A1, B1))
    ]
    return _hex(np.asarray(lanes))


def _words(parts: Iterable[Tensor]) -> Iterator[NDArray[np.uint64]]:
    for part in parts:
        raw = part.contiguous().view(torch.uint8).flatten().numpy()
        yield np.pad(raw, (0, -len(raw) % 8)).view("<u8")


def _mixed_on_host(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(M1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(M2)
    return z ^ (z >> np.uint64(31))


def _hex(lanes: NDArray[np.uint64]) -> str:
    return "".join(f"{lane:016x}" for lane in lanes.tolist())


@triton.jit
def _add_words(flat, blocks, sums, num_bytes, place, num_chunks, CHUNK_SIZE: tl.constexpr):
    """flat [num_blocks, num_bytes] -> sums [N, num_chunks, 2]; the first word of a block stands
    at `place`."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    block = tl.load(blocks + row).to(tl.int64)
    word = chunk * CHUNK_SIZE + tl.arange(0, CHUNK_SIZE)  # [C]
    byte = tl.arange(0, 8)  # [8]
    index = word[:, None] * 8 + byte[None, :]  # [C, 8]
    raw = tl.load(flat + block * num_bytes + index, mask=index < num_bytes, other=0)
    shifted = raw.to(tl.uint64) << (byte * 8).to(tl.uint64)[None, :]
    words = tl.sum(shifted, axis=1)  # [C]
    real = word * 8 < num_bytes
    places = (place + word + 1).to(tl.uint64)
    lane0 = _mixed(words * tl.full([], _A0, tl.uint64) + places * tl.full([], _B0, tl.uint64))
    lane1 = _mixed(words * tl.full([], _A1, tl.uint64) + places * tl.full([], _B1, tl.uint64))
    nothing = tl.zeros_like(words)
    target = sums + (row * num_chunks + chunk) * 2
    tl.store(target, tl.sum(tl.where(real, lane0, nothing), axis=0).to(tl.int64))
    tl.store(target + 1, tl.sum(tl.where(real, lane1, nothing), axis=0).to(tl.int64))


@triton.jit
def _mixed(z):
    z = (z ^ (z >> 30)) * tl.full([], _M1, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], _M2, tl.uint64)
    return z ^ (z >> 31)
