"""Write the vectors of a step into their slots, in the precision that the pool keeps.

program (t, h)     vectors[t, h, :]  ->  codes[slots[t], h, :], scales[slots[t], h]
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# what stands in a kernel is triton's language, which has other types than Python's

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..quantize import INT4_LEVELS, INT8_LEVELS, LARGEST, SMALLEST
from .tiles import LAUNCH_NARROW, bits_of, codes_and_scales, padded

ROUNDING = 1.5 * 2**23
"""Added to a float32 below 2**22 and taken away again it leaves the nearest whole number, half to
even."""

_ROUNDING = tl.constexpr(ROUNDING)
_LARGEST = tl.constexpr(LARGEST)
_SMALLEST = tl.constexpr(SMALLEST)


def write_slots(parts: tuple[Tensor, ...], slots: Tensor, vectors: Tensor) -> None:
    """vectors [N, heads, dim] into the rows `slots` [N] of a store's parts; -1 = nowhere.

    What it writes is bit for bit what `KVStore.write` does.
    """
    count, heads, dim = vectors.shape
    if not count:
        return
    codes, scales = codes_and_scales(parts)
    bits = bits_of(parts, dim)
    _write_slots[(count, heads)](
        vectors, slots, codes, scales, *vectors.stride(),
        HEADS=heads, DIM=dim, WIDTH=codes.shape[-1], PADDED=padded(codes.shape[-1]), BITS=bits,
        LEVELS=INT4_LEVELS if bits == 4 else INT8_LEVELS, **LAUNCH_NARROW,
    )  # fmt: skip


@triton.jit
def _write_slots(
    vectors, slots, codes, scales, stride_token, stride_head, stride_entry,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    BITS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """A row of codes is WIDTH wide: DIM, or with 4 bits ceil(DIM / 2)."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    source = vectors + token * stride_token + head * stride_head
    target = slot * HEADS + head
    entry = tl.arange(0, PADDED)  # [PADDED]
    stored = entry < WIDTH
    low = tl.load(source + entry * stride_entry, mask=stored, other=0)  # [PADDED]
    if BITS is None:
        value = low.to(codes.dtype.element_ty)
    else:
        low = low.to(tl.float32)
        if BITS == 8:
            high = tl.zeros_like(low)
        else:  # the second half of the vector goes to the upper halves of the bytes
            has_high = stored & (entry + WIDTH < DIM)
            high = tl.load(source + (entry + WIDTH) * stride_entry, mask=has_high, other=0)
            high = high.to(tl.float32)
        scale = _scale(low, high, LEVELS)
        tl.store(scales + target, scale)
        value = _codes(low, scale, LEVELS)
        if BITS == 4:
            value = (value & 15) | (_codes(high, scale, LEVELS) << 4)
        value = value.to(tl.int8)
    tl.store(codes + target * WIDTH + entry, value, mask=stored)


@triton.jit
def _scale(low, high, LEVELS: tl.constexpr):
    """Of a vector in two halves, as `quantize.quantize` has it: NaN if there is NaN in it, 0 if
    there is next to nothing."""
    largest = tl.max(tl.maximum(_size(low), _size(high)), axis=0)
    scale = tl.div_rn(tl.minimum(largest, _LARGEST), LEVELS + 0.0)
    scale = tl.where(scale < _SMALLEST, 0.0, scale)
    broken = tl.max(((low != low) | (high != high)).to(tl.int32), axis=0)
    return tl.where(broken > 0, float("nan"), scale)


@triton.jit
def _size(numbers):
    """Absolute values; 0 for NaN, which no maximum may depend on."""
    return tl.where(numbers != numbers, 0.0, tl.abs(numbers))


@triton.jit
def _codes(numbers, scale, LEVELS: tl.constexpr):
    """[PADDED] int32; 0 where the scale is no use."""
    numbers = tl.where(numbers != numbers, 0.0, numbers)
    levels = tl.div_rn(numbers, tl.where(scale > 0, scale, 1.0))
    levels = tl.minimum(tl.maximum(levels, -LEVELS + 0.0), LEVELS + 0.0)
    codes = ((levels + _ROUNDING) - _ROUNDING).to(tl.int32)
    return tl.where(scale > 0, codes, 0)
