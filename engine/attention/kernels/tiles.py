"""What the kernels share: from keys to slots, from slots to vectors, from products to scores."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# what stands in a kernel is triton's language, which has other types than Python's

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs


def compute_type(dtype: torch.dtype) -> Any:
    """What tiles of a model's `dtype` are multiplied in: the same, but triton's interpreter would
    take bfloat16 for integers."""
    if dtype == torch.bfloat16 and knobs.runtime.interpret:
        return tl.float32
    return {
        torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16
    }[dtype]  # fmt: skip


LAUNCH: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
LAUNCH_NARROW = LAUNCH | {"num_warps": 1}
"""Fusion is triton's default up to 3.9, and is to be asked for from 3.10 on."""

WARPS_FOR_FLOAT32 = 8
KEYS_FOR_FLOAT32 = 16
"""Found by compiling for each capability: with fewer warps, or more keys, registers spill."""

SMALLEST_DOT = 16
"""No side of a `tl.dot` may be shorter."""


def launch(dtype: torch.dtype) -> dict[str, Any]:
    """What attention over a model's `dtype` is started with. Tensor cores don't compute float32
    exactly, so that its products take registers, which four warps don't have enough of."""
    return LAUNCH | {"num_warps": WARPS_FOR_FLOAT32} if dtype == torch.float32 else LAUNCH


def keys_in_a_tile(most: int, dtype: torch.dtype, bits: int | None) -> int:
    """As many as registers hold: integers of `bits` become numbers in registers first. Part of
    the arithmetic, as any size of a tile is: another gives other bits."""
    if dtype == torch.float32:
        return KEYS_FOR_FLOAT32
    return most // 2 if bits == 4 else most


def padded(size: int) -> int:
    """The tile that holds `size` elements: a power of two that `tl.dot` takes."""
    return max(SMALLEST_DOT, 1 << (size - 1).bit_length())


def bits_of(parts: tuple[Tensor, ...], dim: int) -> int | None:
    """8 or 4 where a store's parts are integer codes and scales; None = floating point."""
    if len(parts) == 1:
        return None
    return 8 if parts[0].shape[-1] == dim else 4


def codes_and_scales(parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
    """The arguments of `load_vectors` for a store's parts."""
    return parts[0], parts[1] if len(parts) > 1 else None


@triton.jit
def slots_of(table, keys, seen, table_width, BLOCK_SIZE: tl.constexpr):
    """keys [K], counted from the start of the text -> slots [K] int64, and which may be read [K]:
    those `seen`, and neither in a hole nor behind the table's end."""
    index = keys // BLOCK_SIZE
    seen = seen & (index < table_width)
    blocks = tl.load(table + index, mask=seen, other=-1)  # [K]
    return blocks.to(tl.int64) * BLOCK_SIZE + keys % BLOCK_SIZE, seen & (blocks >= 0)


@triton.jit
def load_vectors(
    codes, scales, slots, head, readable, DTYPE: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """One head of slots [K] -> [K, PADDED] as DTYPE; zeros where not `readable` [K], and behind
    DIM. Integers are scaled as `quantize.dequantize` does it."""
    vector = slots * HEADS + head  # [K]
    entry = tl.arange(0, PADDED)  # [PADDED]
    mask = readable[:, None] & (entry < DIM)[None, :]
    if BITS == 4:
        HALF: tl.constexpr = (DIM + 1) // 2
        is_low = (entry < HALF)[None, :]
        byte_index = tl.where(entry < HALF, entry, entry - HALF)[None, :]
        byte = tl.load(codes + vector[:, None] * HALF + byte_index, mask=mask, other=0)
        byte = byte.to(tl.int32)
        loaded = tl.where(is_low, (byte << 28) >> 28, byte >> 4)
    else:
        loaded = tl.load(codes + vector[:, None] * DIM + entry[None, :], mask=mask, other=0)
    if BITS is not None:
        scale = tl.load(scales + vector, mask=readable, other=0.0)  # [K]
        loaded = loaded.to(tl.float32) * scale[:, None]
    return loaded.to(DTYPE)


@triton.jit
def scores_of(query, keys, visible, scaling, SOFTCAP: tl.constexpr):
    """query [Q, D], keys [K, D] -> [Q, K] float32, -inf where not `visible` (broadcast to it)."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scaling
    if SOFTCAP is not None:
        # tanh(x) = 1 - 2 / (exp(2x) + 1)
        scores = SOFTCAP - 2 * SOFTCAP / (tl.exp(scores * (2.0 / SOFTCAP)) + 1)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def rescaled(highest, seen_before):
    """exp(seen_before - highest), where both may be -inf: what was summed up under the maximum
    `seen_before` counts by this factor under `highest`."""
    return tl.exp(seen_before - tl.where(highest == float("-inf"), 0.0, highest))
