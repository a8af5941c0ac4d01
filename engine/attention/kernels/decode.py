"""Attention of single queries over their own blocks, with the keys in splits of a fixed size.

    splits of row n     | 0 .. 255 | 256 .. 511 | 512 .. seq_len |
    program (n, h, s)   walks one split in tiles of 64 keys, for all query heads of KV head h
    program (n, head)   joins what the splits of row n found, in their order

Where a key falls depends on its own position alone, so a row's result is the same bits beside any
neighbours, and the same whether its token comes as a decode row or as one of a prompt's.
Flash-Decoding (Dao et al. 2023), https://pytorch.org/blog/flash-decoding/.
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
    LAUNCH_NARROW,
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

SPLIT = 256
"""Keys in a split. Part of the arithmetic: another size gives other bits."""
TILE = 64
"""Keys that are loaded together; divides `SPLIT`."""


class DecodeRows(NamedTuple):
    """N single queries."""

    tokens: Tensor  # [N] int32: which token of the step
    tables: Tensor  # [N] int32: which row of the block tables
    seq_lens: Tensor  # [N] int32: how many keys there are up to the query; 0 = a pad


def attend_decode(
    out: Tensor,
    query: Tensor,
    keys: tuple[Tensor, ...],
    values: tuple[Tensor, ...],
    block_tables: Tensor,
    rows: DecodeRows,
    scoring: Scoring,
    *,
    block_size: int,
    window: int | None,
) -> None:
    """Fills the rows' tokens of `out` [T, heads, value_dim]; pads get zeros, and a query that sees
    nothing NaN.

    query [T, heads, head_dim]; keys and values: the parts of a layer's stores; block_tables
    [R, W] int32.
    """
    count, heads, dim, value_dim = len(rows.tokens), *query.shape[1:], out.shape[-1]
    kv_heads, width = keys[0].shape[1], block_tables.shape[1]
    tile = keys_in_a_tile(TILE, query.dtype, bits_of(keys, dim))
    splits = max(triton.cdiv(width * block_size, SPLIT), 1)
    found = query.new_empty(count, heads, splits, value_dim, dtype=torch.float32)
    maxima = query.new_empty(count, heads, splits, dtype=torch.float32)
    sums = torch.empty_like(maxima)
    _attend_splits[(count, kv_heads, splits)](
        query, *codes_and_scales(keys), *codes_and_scales(values), block_tables, *rows,
        found, maxima, sums, *query.stride()[:2], width, splits, scoring.scaling,
        WINDOW=window, SOFTCAP=scoring.softcap, DTYPE=compute_type(query.dtype),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, PADDED_GROUP=padded(heads // kv_heads),
        DIM=dim, PADDED_DIM=padded(dim), VALUE_DIM=value_dim, PADDED_VALUE_DIM=padded(value_dim),
        KEY_BITS=bits_of(keys, dim), VALUE_BITS=bits_of(values, value_dim),
        BLOCK_SIZE=block_size, SPLIT_SIZE=SPLIT, TILE_SIZE=tile, num_stages=3,
        **launch(query.dtype),
    )  # fmt: skip
    _join_splits[(count, heads)](
        out, found, maxima, sums, scoring.sinks, rows.tokens, rows.seq_lens,
        *out.stride()[:2], splits, WINDOW=window, HEADS=heads,
        VALUE_DIM=value_dim, PADDED_VALUE_DIM=padded(value_dim), SPLIT_SIZE=SPLIT, **LAUNCH_NARROW,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_width", "num_splits"])
def _attend_splits(
    query, key_codes, key_scales, value_codes, value_scales, block_tables,
    tokens, tables, seq_lens, found, maxima, sums,
    query_stride_token, query_stride_head, table_width, num_splits, scaling,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, DTYPE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    """found [N, heads, splits, VALUE_DIM] sums of weighted values, maxima and sums
    [N, heads, splits] of the weights; a split that the row doesn't reach is left as it is."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens + row)
    first_seen = 0
    if WINDOW is not None:
        first_seen = tl.maximum(seq_len - WINDOW, 0)
    start = split * SPLIT_SIZE
    stop = tl.minimum(start + SPLIT_SIZE, seq_len)
    if stop <= tl.maximum(start, first_seen):
        return
    begin = tl.maximum(start, first_seen // TILE_SIZE * TILE_SIZE)

    member = tl.arange(0, PADDED_GROUP)  # [G] query heads of this KV head
    heads = kv_head * GROUP + member
    entry = tl.arange(0, PADDED_DIM)
    token = tl.load(tokens + row).to(tl.int64)
    q = tl.load(
        query + token * query_stride_token + heads[:, None] * query_stride_head + entry[None, :],
        mask=(member < GROUP)[:, None] & (entry < DIM)[None, :],
        other=0,
    ).to(DTYPE)  # [G, D]
    table = block_tables + tl.load(tables + row).to(tl.int64) * table_width

    highest = tl.full([PADDED_GROUP], float("-inf"), tl.float32)  # [G]
    total = tl.zeros([PADDED_GROUP], tl.float32)  # [G]
    acc = tl.zeros([PADDED_GROUP, PADDED_VALUE_DIM], tl.float32)  # [G, V]
    for first in range(begin, stop, TILE_SIZE):
        key = first + tl.arange(0, TILE_SIZE)  # [K]
        seen = (key >= first_seen) & (key < stop)
        slots, readable = slots_of(table, key, seen, table_width, BLOCK_SIZE)
        k = load_vectors(
            key_codes, key_scales, slots, kv_head, readable, DTYPE,
            KV_HEADS, DIM, PADDED_DIM, KEY_BITS,
        )  # [K, D]  # fmt: skip
        scores = scores_of(q, k, readable[None, :], scaling, SOFTCAP)  # [G, K]
        above = tl.maximum(highest, tl.max(scores, axis=1))
        before = rescaled(above, highest)
        weights = rescaled(above[:, None], scores)  # [G, K]
        v = load_vectors(
            value_codes, value_scales, slots, kv_head, readable, DTYPE,
            KV_HEADS, VALUE_DIM, PADDED_VALUE_DIM, VALUE_BITS,
        )  # [K, V]  # fmt: skip
        acc = tl.dot(weights.to(DTYPE), v, acc * before[:, None], input_precision="ieee")
        total = total * before + tl.sum(weights, axis=1)
        highest = above

    cell = (row.to(tl.int64) * (KV_HEADS * GROUP) + heads) * num_splits + split  # [G]
    real = member < GROUP
    tl.store(maxima + cell, highest, mask=real)
    tl.store(sums + cell, total, mask=real)
    value = tl.arange(0, PADDED_VALUE_DIM)
    mask = real[:, None] & (value < VALUE_DIM)[None, :]
    tl.store(found + cell[:, None] * VALUE_DIM + value[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=["num_splits"])
def _join_splits(
    out, found, maxima, sums, sinks, tokens, seq_lens,
    out_stride_token, out_stride_head, num_splits,
    WINDOW: tl.constexpr, HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, SPLIT_SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    seq_len = tl.load(seq_lens + row)
    first_seen = 0
    if WINDOW is not None:
        first_seen = tl.maximum(seq_len - WINDOW, 0)
    value = tl.arange(0, PADDED_VALUE_DIM)  # [V]
    real = value < VALUE_DIM
    token = tl.load(tokens + row).to(tl.int64)
    target = out + token * out_stride_token + head * out_stride_head + value
    if seq_len <= 0:  # a pad
        tl.store(target, tl.zeros([PADDED_VALUE_DIM], out.dtype.element_ty), mask=real)
        return

    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    acc = tl.zeros([PADDED_VALUE_DIM], tl.float32)  # [V]
    first_cell = (row.to(tl.int64) * HEADS + head) * num_splits
    reached = tl.minimum(tl.cdiv(seq_len, SPLIT_SIZE), num_splits)
    for split in range(first_seen // SPLIT_SIZE, reached):
        of_split = tl.load(maxima + first_cell + split)
        above = tl.maximum(highest, of_split)
        before, here = rescaled(above, highest), rescaled(above, of_split)
        part = tl.load(found + (first_cell + split) * VALUE_DIM + value, mask=real, other=0.0)
        acc = acc * before + part * here
        total = total * before + tl.load(sums + first_cell + split) * here
        highest = above
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
        above = tl.maximum(highest, sink)
        acc *= rescaled(above, highest)
        total = total * rescaled(above, highest) + rescaled(above, sink)
    tl.store(target, (acc / total).to(out.dtype.element_ty), mask=real)
