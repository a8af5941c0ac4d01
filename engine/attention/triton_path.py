"""The path for CUDA: Triton kernels that read the pool by block tables, without a gather.

    row           0 (prefill, 70 tokens)     1 (decode)   2 (1 token and 2 drafts)
    prefill       tokens 0-63, 64-69
    decode                                   70           71  72  73

A query reads what its block table, its position and the window say, as in the fast path.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..inputs import GroupInputs, IntArray, StepInputs
from .kernels.decode import DecodeRows, attend_decode
from .kernels.prefill import QueryTiles, attend_prefill, queries_in_a_tile
from .pool import KVPool
from .scores import Scoring

LONGEST_DECODE = 8
"""Rows of up to so many queries are taken query by query; longer ones in tiles."""


class TritonAttention:
    """Attention of one KV group in one step, planned once and carried out layer by layer.

    `exact`: every query is taken as a decode row is, so that its bits depend on nothing but its
    own keys, in whatever step and beside whatever neighbours it is computed.
    """

    def __init__(
        self,
        inputs: StepInputs,
        group: GroupInputs,
        pool: KVPool,
        *,
        nan_scrubbed: bool = False,
        exact: bool = False,
    ) -> None:
        self._pool = pool
        self._window = group.window
        self._nan_scrubbed = nan_scrubbed
        self._tables = _int32(group.block_tables, pool.device)
        one_by_one = (inputs.query_lens <= LONGEST_DECODE) | exact
        self._decode = decode_rows(inputs, one_by_one, pool.device)
        self._prefill = _query_tiles(inputs, ~one_by_one, pool)

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; the step's KV is in the pool."""
        keys, values = self._pool.stored(layer)
        out = query.new_zeros(*query.shape[:2], self._pool.shapes[layer].value_dim)
        where = {"block_size": self._pool.block_size, "window": self._window}
        if len(self._decode.tokens):
            attend_decode(out, query, keys, values, self._tables, self._decode, scoring, **where)
        if len(self._prefill.tokens):
            attend_prefill(
                out, query, keys, values, self._tables, self._prefill, scoring,
                nan_scrubbed=self._nan_scrubbed, **where,
            )  # fmt: skip
        return out


def decode_rows(
    inputs: StepInputs, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], device: torch.device
) -> DecodeRows:
    """Each query of the `chosen` rows [R] by itself, pads included."""
    rows = inputs.row_of_token
    tokens = np.flatnonzero(chosen[rows])
    rows = rows[tokens]
    behind = inputs.row_starts[1:][rows] - tokens - 1  # queries of the row after this one
    seq_lens = np.maximum(inputs.seq_lens[rows] - behind, 0)
    return DecodeRows(*(_int32(array, device) for array in (tokens, rows, seq_lens)))


def _query_tiles(
    inputs: StepInputs, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], pool: KVPool
) -> QueryTiles:
    """The queries of the `chosen` rows [R] in tiles; pads are in none."""
    size = queries_in_a_tile(pool.dtype, quantized=_is_quantized(pool))
    starts = inputs.row_starts
    tiles = [
        (starts[row] + first, min(size, length - first), inputs.seq_lens[row] - length + first, row)
        for row, length in enumerate(inputs.query_lens.tolist())
        if chosen[row] and inputs.seq_lens[row] > 0
        for first in range(0, length, size)
    ]
    columns = np.asarray(tiles, dtype=np.int64).reshape(-1, 4).T
    return QueryTiles(*(_int32(column, pool.device) for column in columns), size=size)


def _is_quantized(pool: KVPool) -> bool:
    """Whether any layer's keys or values are integers."""
    layers = range(len(pool.shapes))
    return any(len(parts) > 1 for layer in layers for parts in pool.stored(layer))


def _int32(array: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int32)).to(device)
