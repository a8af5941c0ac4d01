"""Integers for real vectors: symmetric, by the largest absolute entry, one scale per vector.

    scale = absmax / levels        code = round(x / scale)        x' = code * scale

so that |x - x'| <= scale / 2. Whatever the vector holds must survive in kind: zeros come back as
zeros, a vector with a NaN comes back as NaN throughout, an infinity as the largest number there is.
"""

from __future__ import annotations

import torch
from torch import Tensor

INT8_LEVELS = 127
INT4_LEVELS = 7

LARGEST = torch.finfo(torch.float32).max * (1 - 2**-20)
"""A little below the end of float32, so that levels * scale can't round up to infinity."""

SMALLEST = torch.finfo(torch.float32).tiny
"""A scale below this has lost its precision; such a vector is stored as zeros."""


def quantize(vectors: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """[..., dim] of any float type -> codes [..., dim] int8 and scales [..., 1] float32."""
    exact = vectors.float()
    scales = exact.abs().amax(dim=-1, keepdim=True).clamp(max=LARGEST) / levels
    scales = scales.masked_fill(scales < SMALLEST, 0.0)
    codes = (exact / scales).nan_to_num(nan=0.0).round().clamp(-levels, levels)
    return codes.masked_fill(scales == 0, 0).to(torch.int8), scales


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of `quantize`, as `dtype`."""
    return (codes * scales).to(dtype)


def pack(codes: Tensor) -> Tensor:
    """int4 codes [..., dim] -> bytes [..., ceil(dim / 2)] int8, in two's complement.

    Byte i holds entry i in its low half and entry ceil(dim / 2) + i in its high half: halves join
    faster than neighbours do. The last high half of an odd `dim` is 0.
    """
    half = -(-codes.shape[-1] // 2)
    low, high = codes[..., :half], codes[..., half:]
    if high.shape[-1] < half:
        high = torch.nn.functional.pad(high, (0, 1))
    return (low & 15) | (high << 4)


def unpack(packed: Tensor, dim: int) -> Tensor:
    """Inverse of `pack`: int4 codes [..., dim] as int8."""
    low, high = (packed << 4) >> 4, packed >> 4  # the shift back brings the sign along
    return torch.cat([low, high], dim=-1)[..., :dim]
