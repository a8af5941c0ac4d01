"""The fast path: each row gathers its own blocks and attends over them alone.

    row        0 (prefill, 5 tokens)     1 (decode)   2 (decode)
    tokens     0  1  2  3  4             5            6
    part       {row 0}                   {rows 1, 2}, one call with a length mask

What a row can see follows from its block table, its `seq_len` and its `query_len`; a mask fault
can't live here, a wrong table or length can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..inputs import GroupInputs, StepInputs
from .pool import KVPool

LONGEST_BATCHED_QUERY = 64
"""Longer queries gain nothing from sharing a call and lose the causal kernel."""


class _Part(NamedTuple):
    """Rows of equal query length whose attention is one call."""

    rows: int
    query_len: int
    tokens: Tensor | slice  # [rows * query_len] into the packed tokens
    keys: slice  # [rows * padded length] into what the step gathers
    bias: Tensor | None  # [rows, 1, query_len, padded length] additive; None = see `causal`
    causal: bool


class FastAttention:
    """Attention of one step, planned once and carried out layer by layer."""

    def __init__(self, inputs: StepInputs, pool: KVPool) -> None:
        self._pool = pool
        self._inputs = inputs
        self._plans = [_plan_group(inputs, group, pool) for group in inputs.groups]

    def attend(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; the step's KV is in the pool."""
        blocks, parts = self._plans[self._inputs.group_of(layer)]
        keys, values = self._pool.gather(layer, blocks)
        if len(parts) == 1:
            (part,) = parts
            return _attend(part, query, keys[part.keys], values[part.keys], scaling)
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        for part in parts:
            out[part.tokens] = _attend(
                part, query[part.tokens], keys[part.keys], values[part.keys], scaling
            )
        return out


def _plan_group(inputs: StepInputs, group: GroupInputs, pool: KVPool) -> tuple[Tensor, list[_Part]]:
    """The blocks that one KV group's layers gather, and what is done with them."""
    blocks: list[NDArray[np.int64]] = []
    parts: list[_Part] = []
    gathered = 0
    for rows in _batches(inputs, pool.block_size):
        tables = _tables(inputs, group, rows, pool.block_size)
        size = tables.size * pool.block_size
        keys = slice(gathered, gathered + size)
        parts.append(_plan(inputs, rows, tables, keys, pool))
        # A hole is read as the row's own first block and masked: never somebody else's.
        own = np.maximum(tables[:, :1], 0)
        blocks.append(np.where(tables >= 0, tables, own).ravel())
        gathered += size
    return torch.from_numpy(np.concatenate(blocks)).to(pool.device), parts


def _batches(inputs: StepInputs, block_size: int) -> Iterator[NDArray[np.int64]]:
    """Rows that share a call: equal query length, and lengths within a factor of two."""
    blocks = np.maximum(-(-inputs.seq_lens // block_size), 1)
    length_class = np.ceil(np.log2(blocks)).astype(np.int64)
    alone = inputs.query_lens > LONGEST_BATCHED_QUERY
    groups: dict[tuple[int, int, int], list[int]] = {}
    for row, query_len in enumerate(inputs.query_lens.tolist()):
        own = row if alone[row] else -1
        groups.setdefault((query_len, int(length_class[row]), own), []).append(row)
    for rows in groups.values():
        yield np.asarray(rows)


def _tables(
    inputs: StepInputs, group: GroupInputs, rows: NDArray[np.int64], block_size: int
) -> NDArray[np.int64]:
    """[rows, blocks of the longest] physical blocks, -1 where the table has none."""
    width = max(-(-int(inputs.seq_lens[rows].max()) // block_size), 1)
    tables = group.block_tables[rows, :width]
    return np.pad(tables, ((0, 0), (0, width - tables.shape[1])), constant_values=-1)


def _plan(
    inputs: StepInputs,
    rows: NDArray[np.int64],
    tables: NDArray[np.int64],
    keys: slice,
    pool: KVPool,
) -> _Part:
    query_len = int(inputs.query_lens[rows[0]])
    fresh = len(rows) == 1 and query_len == int(inputs.seq_lens[rows[0]])
    causal = fresh and bool((tables >= 0).all())
    return _Part(
        rows=len(rows),
        query_len=query_len,
        tokens=_token_index(inputs, rows, query_len, pool.device),
        keys=slice(keys.start, keys.start + query_len) if causal else keys,
        bias=None if causal else _bias(inputs.seq_lens[rows], query_len, tables, pool),
        causal=causal and query_len > 1,
    )


def _token_index(
    inputs: StepInputs, rows: NDArray[np.int64], query_len: int, device: torch.device
) -> Tensor | slice:
    starts = inputs.row_starts[rows]
    index = (starts[:, None] + np.arange(query_len)).ravel()
    if len(index) == index[-1] - index[0] + 1:  # rows that lie side by side need no gather
        return slice(int(index[0]), int(index[-1]) + 1)
    return torch.from_numpy(index).to(device)


def _bias(
    seq_lens: NDArray[np.int64], query_len: int, tables: NDArray[np.int64], pool: KVPool
) -> Tensor:
    """[rows, 1, query_len, padded length]: 0 where visible, -inf elsewhere."""
    key_index = np.arange(tables.shape[1] * pool.block_size)
    last_seen = seq_lens[:, None] - query_len + np.arange(query_len)
    visible = key_index <= last_seen[:, :, None]
    visible &= np.repeat(tables >= 0, pool.block_size, axis=1)[:, None, :]
    bias = torch.zeros(visible.shape, dtype=pool.dtype, device=pool.device)
    bias.masked_fill_(~torch.from_numpy(visible).to(pool.device), float("-inf"))
    return bias[:, None]


def _attend(part: _Part, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """query [rows * query_len, heads, head_dim], keys and values of these rows alone."""
    heads, kv_heads = query.shape[1], keys.shape[1]
    k = keys.unflatten(0, (part.rows, -1)).transpose(1, 2)
    v = values.unflatten(0, (part.rows, -1)).transpose(1, 2)
    if part.query_len == 1:  # the heads of a group become the queries of one head: no copies of KV
        q = query.view(part.rows, kv_heads, heads // kv_heads, -1)
        out = scaled_dot_product_attention(q, k, v, attn_mask=part.bias, scale=scaling)
        return out.reshape(part.rows, heads, -1)
    q = query.unflatten(0, (part.rows, part.query_len)).transpose(1, 2)
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=part.bias,
        is_causal=part.causal,
        scale=scaling,
        enable_gqa=heads != kv_heads,
    )
    return out.transpose(1, 2).reshape(-1, heads, out.shape[-1])
