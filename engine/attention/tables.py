"""Which blocks a row reads: what both paths make of a block table."""

from __future__ import annotations

import numpy as np

from ..inputs import IntArray


def table_span(tables: IntArray, first: IntArray, count: IntArray) -> IntArray:
    """tables [R, W] -> [R, longest count]: the `count` [R] entries of each row from `first` [R] on,
    -1 behind them and where the table has none."""
    index = first[:, None] + np.arange(count.max(initial=0))
    padded = np.pad(
        tables,
        ((0, 0), (0, max(0, index.max(initial=-1) + 1 - tables.shape[1]))),
        constant_values=-1,
    )
    entries = np.take_along_axis(padded, index, axis=1)
    return np.where(index < (first + count)[:, None], entries, -1)


def without_holes(tables: IntArray) -> IntArray:
    """[R, W], a hole replaced by a block of its own row: never somebody else's, and masked."""
    own = tables.max(axis=1, initial=0, keepdims=True)
    return np.where(tables >= 0, tables, own)
