"""The fast path: each row gathers its own blocks and attends over them alone.

    row        0 (prefill, 5 tokens)     1 (decode)   2 (decode)
    tokens     0  1  2  3  4             5            6
    part       {row 0}                   {rows 1, 2}, one call with a length mask

What a row can see follows from its block table, its `seq_len`, its `query_len` and the window; a
mask fault can't live here, a wrong table or length can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..inputs import GroupInputs, IntArray, StepInputs
from . import scores
from .pool import KVPool
from .scores import Scoring
from .tables import table_span, without_holes

LONGEST_BATCHED_QUERY = 64
"""Longer queries gain nothing from sharing a call and lose the causal kernel."""


class _Rows(NamedTuple):
    """Rows of equal query length that share a call, and the blocks that they look at."""

    query_len: int
    seq_lens: IntArray  # [N]
    starts: IntArray  # [N] index of each row's first token in the step
    first: IntArray  # [N] index of the first key that is looked at, a multiple of block_size
    tables: IntArray  # [N, W] blocks from `first` on, -1 = hole or past the end


class _Part(NamedTuple):
    """Rows whose attention is one call."""

    rows: int
    query_len: int
    tokens: Tensor | slice  # [rows * query_len] into the step's tokens
    keys: slice  # [rows * padded length] into what the step gathers
    bias: Tensor | None  # [rows, 1, query_len, padded length] additive; None = causal


class FastAttention:
    """Attention of one KV group in one step, planned once and carried out layer by layer.

    `nan_scrubbed`: slots may hold NaN, and no query may meet it that doesn't see it. Costs the
    kernels.
    """

    def __init__(
        self, inputs: StepInputs, group: GroupInputs, pool: KVPool, *, nan_scrubbed: bool = False
    ) -> None:
        self._pool = pool
        self._nan_scrubbed = nan_scrubbed
        self._parts: list[_Part] = []
        blocks: list[IntArray] = [np.zeros(0, dtype=np.int64)]
        gathered = 0
        for rows in _batches(inputs, group, pool.block_size):
            keys = slice(gathered, gathered + rows.tables.size * pool.block_size)
            self._parts.append(_plan(rows, group.window, keys, pool, causal=not nan_scrubbed))
            blocks.append(without_holes(rows.tables).ravel())
            gathered = keys.stop
        self._blocks = torch.from_numpy(np.concatenate(blocks)).to(pool.device)
        self._in_one_part = len(self._parts) == 1 and bool((inputs.seq_lens > 0).all())

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; the step's KV is in the pool."""
        keys, values = self._pool.gather(layer, self._blocks)
        if self._in_one_part:
            (part,) = self._parts
            return self._attend(part, query, keys[part.keys], values[part.keys], scoring)
        out = query.new_zeros(*query.shape[:2], values.shape[-1])
        for part in self._parts:
            out[part.tokens] = self._attend(
                part, query[part.tokens], keys[part.keys], values[part.keys], scoring
            )
        return out

    def _attend(
        self, part: _Part, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring
    ) -> Tensor:
        """query [rows * query_len, heads, head_dim], keys and values of these rows alone."""
        q = query.unflatten(0, (part.rows, part.query_len)).transpose(1, 2)
        k = keys.unflatten(0, (part.rows, -1)).transpose(1, 2)
        v = values.unflatten(0, (part.rows, -1)).transpose(1, 2)
        if self._nan_scrubbed or not scoring.is_plain:
            bias = _causal_bias(q) if part.bias is None else part.bias
            attend = scores.attend_past_nan if self._nan_scrubbed else scores.attend
            out = attend(q, k, v, bias, scoring)
        else:
            out = _by_kernel(q, k, v, part.bias, scoring.scaling)
        return out.transpose(1, 2).flatten(0, 1)


def _batches(inputs: StepInputs, group: GroupInputs, block_size: int) -> Iterator[_Rows]:
    """Rows that share a call: equal query length, and lengths within a factor of two. No pads."""
    first, count = _blocks_in_sight(inputs, group.window, block_size)
    length_class = np.ceil(np.log2(count)).astype(np.int64).tolist()
    starts = inputs.row_starts
    batches: dict[tuple[int, int, int | None], list[int]] = {}
    for row, query_len in enumerate(inputs.query_lens.tolist()):
        if inputs.seq_lens[row] > 0:
            alone = row if query_len > LONGEST_BATCHED_QUERY else None
            batches.setdefault((query_len, length_class[row], alone), []).append(row)
    for (query_len, *_), rows in batches.items():
        yield _Rows(
            query_len=query_len,
            seq_lens=inputs.seq_lens[rows],
            starts=starts[rows],
            first=first[rows] * block_size,
            tables=table_span(group.block_tables[rows], first[rows], count[rows]),
        )


def _blocks_in_sight(
    inputs: StepInputs, window: int | None, block_size: int
) -> tuple[IntArray, IntArray]:
    """[R] index of the first block that the row's first query sees, [R] how many there are."""
    first_query = inputs.seq_lens - inputs.query_lens
    first = np.zeros_like(first_query)
    if window is not None:
        first = np.maximum(first_query - window + 1, 0) // block_size
    return first, np.maximum(-(-inputs.seq_lens // block_size) - first, 1)


def _plan(rows: _Rows, window: int | None, keys: slice, pool: KVPool, *, causal: bool) -> _Part:
    """`causal`: whether the causal kernel may be taken where it sees the same."""
    seq_len = int(rows.seq_lens[0])
    fresh = len(rows.starts) == 1 and rows.query_len == seq_len
    whole = bool((rows.tables >= 0).all()) and (window is None or window >= seq_len)
    causal = causal and fresh and whole
    return _Part(
        rows=len(rows.starts),
        query_len=rows.query_len,
        tokens=_token_index(rows, pool.device),
        keys=slice(keys.start, keys.start + seq_len) if causal else keys,
        bias=None if causal else _bias(rows, window, pool),
    )


def _token_index(rows: _Rows, device: torch.device) -> Tensor | slice:
    index = (rows.starts[:, None] + np.arange(rows.query_len)).ravel()
    if len(index) == index[-1] - index[0] + 1:  # rows that lie side by side need no gather
        return slice(int(index[0]), int(index[-1]) + 1)
    return torch.from_numpy(index).to(device)


def _bias(rows: _Rows, window: int | None, pool: KVPool) -> Tensor:
    """[rows, 1, query_len, padded length]: 0 where visible, -inf elsewhere."""
    keys = rows.first[:, None] + np.arange(rows.tables.shape[1] * pool.block_size)  # [N, K]
    queries = (rows.seq_lens - rows.query_len)[:, None] + np.arange(rows.query_len)  # [N, Q]
    visible = keys[:, None] <= queries[:, :, None]
    if window is not None:
        visible &= queries[:, :, None] - keys[:, None] < window
    visible &= np.repeat(rows.tables >= 0, pool.block_size, axis=1)[:, None]
    bias = torch.zeros(visible.shape, dtype=pool.dtype, device=pool.device)
    bias.masked_fill_(~torch.from_numpy(visible).to(pool.device), float("-inf"))
    return bias[:, None]


def _causal_bias(query: Tensor) -> Tensor:
    """query [1, heads, Q, dim], over as many keys -> [1, 1, Q, Q]."""
    size = query.shape[2]
    hidden = torch.full((size, size), float("-inf"), dtype=query.dtype, device=query.device)
    return hidden.triu(1)[None, None]


def _by_kernel(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float
) -> Tensor:
    """As `scores.attend`, by torch's own kernel; without a bias causal."""
    rows, heads, queries, _ = query.shape
    kv_heads = keys.shape[1]
    if queries == 1:  # the heads of a group become the queries of one head: no copies of KV
        q = query.reshape(rows, kv_heads, heads // kv_heads, -1)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scaling)
        return out.reshape(rows, heads, 1, -1)
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=bias,
        is_causal=bias is None,
        scale=scaling,
        enable_gqa=heads != kv_heads,
    )
