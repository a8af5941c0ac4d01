"""Overwrite whole blocks: with zeros, or with NaN, which whoever reads it can't overlook.

program (n, c)     part c of block blocks[n] of one part of a store
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# what stands in a kernel is triton's language, which has other types than Python's

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import LAUNCH

CHUNK = 1024
"""Elements that a program overwrites."""


def scrub_blocks(
    parts: tuple[Tensor, ...], blocks: Tensor, block_size: int, how: Literal["zero", "nan"]
) -> None:
    """Every vector of blocks [N] of a store then reads as zeros, or as NaN; -1 is no block.

    Integer codes have no NaN: there the scales get it.
    """
    last = len(parts) - 1
    for number, part in enumerate(parts):
        poisoned = how == "nan" and number == last
        _fill(part, blocks, block_size, torch.nan if poisoned else 0.0)


def _fill(part: Tensor, blocks: Tensor, block_size: int, value: float) -> None:
    elements = block_size * part[0].numel()
    if len(blocks):
        _fill_blocks[(len(blocks), triton.cdiv(elements, CHUNK))](
            part, blocks, elements, value, CHUNK_SIZE=CHUNK, **LAUNCH
        )


@triton.jit
def _fill_blocks(part, blocks, elements, value, CHUNK_SIZE: tl.constexpr):
    """`elements` = how many a block has in `part` [num_slots, heads, width]."""
    block = tl.load(blocks + tl.program_id(0)).to(tl.int64)
    if block < 0:
        return
    element = tl.program_id(1) * CHUNK_SIZE + tl.arange(0, CHUNK_SIZE)  # [CHUNK_SIZE]
    filling = (tl.zeros([CHUNK_SIZE], tl.float32) + value).to(part.dtype.element_ty)
    tl.store(part + block * elements + element, filling, mask=element < elements)
