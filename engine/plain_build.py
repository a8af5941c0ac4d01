"""The reference answers to all table, slot and position questions of a step, as arrays at once.

What a planted fault may change is asked row by row (`builder.py`); the answers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .block_table import BlockTable
from .inputs import BoolArray, IntArray


@dataclass(slots=True)
class Shape:
    """R rows and T tokens of a step."""

    seq_lens: IntArray  # [R]
    rows: IntArray  # [T] row of each token
    positions: IntArray  # [T] each token's index in its request; 0 in pads
    pads: BoolArray | None  # [T]; None = there are none

    @classmethod
    def of(cls, is_pad: Sequence[bool], query_lens: IntArray, seq_lens: IntArray) -> Shape:
        rows = np.arange(len(query_lens)).repeat(query_lens)
        ends = query_lens.cumsum()
        positions = (seq_lens - ends)[rows] + np.arange(len(rows))
        if True not in is_pad:
            return cls(seq_lens, rows, positions, None)
        pads = np.array(is_pad)[rows]
        positions[pads] = 0
        return cls(seq_lens, rows, positions, pads)

    def tables(self, held: Sequence[BlockTable | None], block_size: int) -> IntArray:
        """[R, blocks of the longest row] physical blocks, -1 in holes and past the end of a row.
        `held`: what each row's request holds, None for a pad."""
        counts = (-(-self.seq_lens // block_size)).tolist()
        padded = np.full((len(held), max(counts)), -1, dtype=np.int64)
        for row, table, count in zip(padded, held, counts, strict=True):
            if table is not None:
                blocks = table.blocks[:count]
                row[: len(blocks)] = blocks
        return padded

    def slots(self, tables: IntArray, block_size: int) -> IntArray:
        """[T] the slot of each token, -1 in a hole and for pads."""
        blocks = tables[self.rows, self.positions // block_size]
        slots = blocks * block_size + self.positions % block_size
        slots[blocks < 0] = -1
        if self.pads is not None:
            slots[self.pads] = -1
        return slots
