"""Attention of rows of many queries, which stand at the end of their own text.

row n      keys 0 .. seq_len        queries seq_len - query_len .. seq_len
tile       64 queries of a row, the last one fewer
program    (tile, head) walks the keys that any of the tile's queries sees, 64 at a time,
           with a running maximum (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691)
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# what stands in a kernel is triton's language, which has other types than Python's

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..scores import Scoring
from .tiles import (
    bits_of,
    codes_and_scales,
    compute_type,
    keys_in_a_tile,
    launch,
    load_vectors,
    padded,
    rescaled,
    scores_of,
    slots_of,
)

TILE = 32
"""Keys that are loaded together. More of 128 numbers each, and registers spill."""


class QueryTiles(NamedTuple):
    """M runs of queries, each of one row."""

    tokens: Tensor  # [M] int32: the step's token that is the run's first query
    counts: Tensor  # [M] int32: how many queries
    positions: Tensor  # [M] int32: of the first one in its own text
    tables: Tensor  # [M] int32: which row of the block tables
    size: int  # of a run, at most


def queries_in_a_tile(dtype: torch.dtype, *, quantized: bool) -> int:
    """As many as registers hold. Tensor cores don't compute float32 exactly, and integers become
    numbers in registers first."""
    if dtype == torch.float32:
        return 16
    return 32 if quantized else 64


def attend_prefill(
    out: Tensor,
    query: Tensor,
    keys: tuple[Tensor, ...],
    values: tuple[Tensor, ...],
    block_tables: Tensor,
    tiles: QueryTiles,
    scoring: Scoring,
    *,
    block_size: int,
    window: int | None,
    nan_scrubbed: bool,
) -> None:
    """Fills the tiles' tokens of `out` [T, heads, value_dim]; a query that sees nothing gets NaN.

    query [T, heads, head_dim]; keys and values: the parts of a layer's stores; block_tables
    [R, W] int32. `nan_scrubbed`: keys that only some queries of a tile see may be NaN.
    """
    heads, dim, value_dim = *query.shape[1:], out.shape[-1]
    kv_heads = keys[0].shape[1]
    tile = keys_in_a_tile(TILE, query.dtype, bits_of(keys, dim))
    _attend_tiles[(len(tiles.tokens), heads)](
        out, query, *codes_and_scales(keys), *codes_and_scales(values), block_tables, *tiles[:4],
        scoring.sinks, *out.stride()[:2], *query.stride()[:2], block_tables.shape[1],
        scoring.scaling, WINDOW=window, SOFTCAP=scoring.softcap, NAN_SCRUBBED=nan_scrubbed,
        DTYPE=compute_type(query.dtype), KV_HEADS=kv_heads, GROUP=heads // kv_heads,
        DIM=dim, PADDED_DIM=padded(dim), VALUE_DIM=value_dim, PADDED_VALUE_DIM=padded(value_dim),
        KEY_BITS=bits_of(keys, dim), VALUE_BITS=bits_of(values, value_dim),
        BLOCK_SIZE=block_size, QUERIES=tiles.size,
        TILE_SIZE=tile, num_stages=2, **launch(query.dtype),
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_width"])
def _attend_tiles(
    out, query, key_codes, key_scales, value_codes, value_scales, block_tables,
    tokens, counts, positions, tables, sinks,
    out_stride_token, out_stride_head, query_stride_token, query_stride_head,
    table_width, scaling,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, NAN_SCRUBBED: tl.constexpr, DTYPE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, QUERIES: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    count = tl.load(counts + tile)
    position = tl.load(positions + tile)
    table = block_tables + tl.load(tables + tile).to(tl.int64) * table_width

    member = tl.arange(0, QUERIES)  # [Q]
    real = member < count
    token = tl.load(tokens + tile).to(tl.int64) + member
    entry = tl.arange(0, PADDED_DIM)
    q = tl.load(
        query + token[:, None] * query_stride_token + head * query_stride_head + entry[None, :],
        mask=real[:, None] & (entry < DIM)[None, :],
        other=0,
    ).to(DTYPE)  # [Q, D]

    stop = position + count
    first_seen = 0  # by any of the queries
    if WINDOW is not None:
        first_seen = tl.maximum(position - WINDOW + 1, 0)
    highest = tl.full([QUERIES], float("-inf"), tl.float32)  # [Q]
    total = tl.zeros([QUERIES], tl.float32)  # [Q]
    acc = tl.zeros([QUERIES, PADDED_VALUE_DIM], tl.float32)  # [Q, V]
    for first in range(first_seen // TILE_SIZE * TILE_SIZE, stop, TILE_SIZE):
        key = first + tl.arange(0, TILE_SIZE)  # [K]
        seen = (key >= first_seen) & (key < stop)
        slots, readable = slots_of(table, key, seen, table_width, BLOCK_SIZE)
        k = load_vectors(
            key_codes, key_scales, slots, kv_head, readable, DTYPE,
            KV_HEADS, DIM, PADDED_DIM, KEY_BITS,
        )  # [K, D]  # fmt: skip
        distance = (position + member)[:, None] - key[None, :]  # [Q, K]
        visible = (distance >= 0) & readable[None, :]
        if WINDOW is not None:
            visible = visible & (distance < WINDOW)
        scores = scores_of(q, k, visible, scaling, SOFTCAP)  # [Q, K]
        v = load_vectors(
            value_codes, value_scales, slots, kv_head, readable, DTYPE,
            KV_HEADS, VALUE_DIM, PADDED_VALUE_DIM, VALUE_BITS,
        )  # [K, V]  # fmt: skip
        if NAN_SCRUBBED:  # 0 * NaN is NaN: who sees it is poisoned by its score, others are not
            broken = tl.max((v != v).to(tl.int32), axis=1) > 0  # [K]
            v = tl.where(v != v, tl.zeros_like(v), v)
            scores = tl.where(visible & broken[None, :], float("nan"), scores)
        above = tl.maximum(highest, tl.max(scores, axis=1))
        before = rescaled(above, highest)
        weights = rescaled(above[:, None], scores)  # [Q, K]
        acc = tl.dot(weights.to(DTYPE), v, acc * before[:, None], input_precision="ieee")
        total = total * before + tl.sum(weights, axis=1)
        highest = above

    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
        above = tl.maximum(highest, sink)
        acc *= rescaled(above, highest)[:, None]
        total = total * rescaled(above, highest) + rescaled(above, sink)
    value = tl.arange(0, PADDED_VALUE_DIM)
    tl.store(
        out + token[:, None] * out_stride_token + head * out_stride_head + value[None, :],
        (acc / total[:, None]).to(out.dtype.element_ty),
        mask=real[:, None] & (value < VALUE_DIM)[None, :],
    )
