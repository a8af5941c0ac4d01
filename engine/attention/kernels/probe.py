"""Whose slots does a query attend to? The probability that each row puts on each owner's slots.

It is the attention of `decode` with an owner in the place of a value: keys are walked in the same
way, and where that one adds up weighted values, this one adds up weights by owner. Nothing of the
values is read.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# what stands in a kernel is triton's language, which has other types than Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..scores import Scoring
from .decode import DecodeRows
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
"""Keys that are loaded together. Here more spill registers."""


def attention_by_owner(
    query: Tensor,
    keys: tuple[Tensor, ...],
    block_tables: Tensor,
    rows: DecodeRows,
    owners: Tensor,
    num_owners: int,
    scoring: Scoring,
    *,
    block_size: int,
    window: int | None,
) -> Tensor:
    """[N, heads, num_owners] float32: what the rows' queries put on the slots of each owner.

    owners [num_slots] int32 from 0 up; a slot of anybody else (-1) is attended to and not counted.
    A row sums to 1 where all slots that it sees have owners and there are no sinks, which take
    their share. Pads get zeros. The rest as in `decode.attend_decode`.
    """
    count, heads, dim, kv_heads = len(rows.tokens), *query.shape[1:], keys[0].shape[1]
    tile = keys_in_a_tile(TILE, query.dtype, bits_of(keys, dim))
    mass = query.new_empty(count, heads, num_owners, dtype=torch.float32)
    _sum_by_owner[(count, kv_heads)](
        mass, query, *codes_and_scales(keys), owners, block_tables, *rows, scoring.sinks,
        *query.stride()[:2], block_tables.shape[1], num_owners, scoring.scaling,
        WINDOW=window, SOFTCAP=scoring.softcap, DTYPE=compute_type(query.dtype),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, PADDED_GROUP=padded(heads // kv_heads),
        DIM=dim, PADDED_DIM=padded(dim), PADDED_OWNERS=padded(num_owners),
        KEY_BITS=bits_of(keys, dim), BLOCK_SIZE=block_size, TILE_SIZE=tile, num_stages=2,
        **launch(query.dtype),
    )  # fmt: skip
    return mass


@triton.jit(do_not_specialize=["table_width", "num_owners"])
def _sum_by_owner(
    mass, query, key_codes, key_scales, owners, block_tables, tokens, tables, seq_lens, sinks,
    query_stride_token, query_stride_head, table_width, num_owners, scaling,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, DTYPE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PADDED_OWNERS: tl.constexpr,
    KEY_BITS: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq_len = tl.load(seq_lens + row)
    first_seen = 0
    if WINDOW is not None:
        first_seen = tl.maximum(seq_len - WINDOW, 0)
    member = tl.arange(0, PADDED_GROUP)  # [G]
    heads = kv_head * GROUP + member
    entry = tl.arange(0, PADDED_DIM)
    token = tl.load(tokens + row).to(tl.int64)
    q = tl.load(
        query + token * query_stride_token + heads[:, None] * query_stride_head + entry[None, :],
        mask=(member < GROUP)[:, None] & (entry < DIM)[None, :],
        other=0,
    ).to(DTYPE)  # [G, D]
    table = block_tables + tl.load(tables + row).to(tl.int64) * table_width
    who = tl.arange(0, PADDED_OWNERS)  # [O]

    highest = tl.full([PADDED_GROUP], float("-inf"), tl.float32)  # [G]
    total = tl.zeros([PADDED_GROUP], tl.float32)  # [G]
    acc = tl.zeros([PADDED_GROUP, PADDED_OWNERS], tl.float32)  # [G, O]
    for first in range(first_seen // TILE_SIZE * TILE_SIZE, seq_len, TILE_SIZE):
        key = first + tl.arange(0, TILE_SIZE)  # [K]
        seen = (key >= first_seen) & (key < seq_len)
        slots, readable = slots_of(table, key, seen, table_width, BLOCK_SIZE)
        k = load_vectors(
            key_codes, key_scales, slots, kv_head, readable, DTYPE,
            KV_HEADS, DIM, PADDED_DIM, KEY_BITS,
        )  # [K, D]  # fmt: skip
        scores = scores_of(q, k, readable[None, :], scaling, SOFTCAP)  # [G, K]
        owner = tl.load(owners + slots, mask=readable, other=-1)  # [K]
        belongs = (owner[:, None] == who[None, :]).to(tl.float32)  # [K, O]
        above = tl.maximum(highest, tl.max(scores, axis=1))
        before = rescaled(above, highest)
        weights = rescaled(above[:, None], scores)  # [G, K]
        acc = tl.dot(weights, belongs, acc * before[:, None], input_precision="ieee")
        total = total * before + tl.sum(weights, axis=1)
        highest = above

    real = member < GROUP
    if sinks is not None:
        sink = tl.load(sinks + heads, mask=real, other=0.0).to(tl.float32)  # [G]
        above = tl.maximum(highest, sink)
        acc *= rescaled(above, highest)[:, None]
        total = total * rescaled(above, highest) + rescaled(above, sink)
    if seq_len <= 0:  # a pad
        acc = tl.zeros_like(acc)
        total = total * 0 + 1
    cell = row.to(tl.int64) * (KV_HEADS * GROUP) + heads  # [G]
    tl.store(
        mass + cell[:, None] * num_owners + who[None, :],
        acc / total[:, None],
        mask=real[:, None] & (who < num_owners)[None, :],
    )
