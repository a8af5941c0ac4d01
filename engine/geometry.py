"""Where tokens lie in the pool, and which keys a query sees: the plain arithmetic of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .inputs import BoolArray
from .questions import RowShape


def table_of(
    entries: tuple[int | None, ...], seq_len: int, block_size: int, first: int = 0
) -> tuple[int, ...]:
    """Leading entries that cover `seq_len` tokens; -1 for a missing one and for those before
    `first`, which the row doesn't see."""
    blocks = -(-seq_len // block_size)
    padded = entries[:blocks] + (None,) * (blocks - len(entries))
    return tuple(-1 if b is None or i < first else b for i, b in enumerate(padded))


def first_seen_block(position: int, window: int | None, block_size: int) -> int:
    """Index of the first block that a query at this position sees anything of."""
    return 0 if window is None else max(0, position - window + 1) // block_size


def slots_of(table: tuple[int, ...], tokens: Iterable[int], block_size: int) -> tuple[int, ...]:
    """slot = table[i // block_size] * block_size + i % block_size; -1 in a hole of the table."""
    return tuple(
        -1 if table[i // block_size] < 0 else table[i // block_size] * block_size + i % block_size
        for i in tokens
    )


def visible_keys(row: RowShape, width: int) -> BoolArray:
    """Causal over the row's own keys, inside its window: bool [query_len, width]."""
    return causal(row.columns, row.seq_len - row.query_len, row.query_len, width, row.window)


def causal(
    columns: tuple[int, ...], first: int, query_len: int, width: int, window: int | None = None
) -> BoolArray:
    """Query q, at position p = first + q, sees columns[max(0, p - window + 1) .. p]; -1 is none."""
    keys = np.asarray(columns, dtype=np.int64)
    visible = np.zeros((query_len, width), dtype=bool)
    for query in range(query_len):
        position = first + query
        seen = keys[max(0, position + 1 - window) if window else 0 : position + 1]
        visible[query, seen[seen >= 0]] = True
    return visible
