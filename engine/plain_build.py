"""The reference answers to all table, slot and position questions of a step, as arrays at once.

What a planted fault may change is asked row by row (`builder.py`); the answers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .block_table import BlockTable
from .inputs import BoolArray, IntArray


def plain_positions(computed: IntArray, query_lens: IntArray, is_pad: BoolArray) -> IntArray:
    """[T] from [R]: each token's index in its request; 0 in pads."""
    firsts = np.cumsum(query_lens) - query_lens
    positions = np.repeat(computed - firsts, query_lens) + np.arange(int(query_lens.sum()))
    positions[np.repeat(is_pad, query_lens)] = 0
    return positions


def plain_tables(
    tables: Sequence[BlockTable | None], seq_lens: IntArray, block_size: int
) -> IntArray:
    """[R, blocks of the longest row] physical blocks, -1 in holes and past the end of a row; None
    is a pad."""
    counts = (-(-seq_lens // block_size)).tolist()
    padded = np.full((len(tables), max(counts)), -1, dtype=np.int64)
    for row, (table, count) in enumerate(zip(tables, counts, strict=True)):
        if table is not None:
            blocks = table.blocks[:count]
            padded[row, : len(blocks)] = blocks
    return padded


def plain_slots(
    tables: IntArray, positions: IntArray, query_lens: IntArray, is_pad: BoolArray, block_size: int
) -> IntArray:
    """[T] the slot of each token, -1 in a hole and for pads."""
    rows = np.repeat(np.arange(len(query_lens)), query_lens)
    blocks = tables[rows, positions // block_size]
    is_none = (blocks < 0) | is_pad[rows]
    return np.where(is_none, -1, blocks * block_size + positions % block_size)
