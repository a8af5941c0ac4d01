"""The exact path: what a query gets doesn't depend on who else is in the step, nor on where.

Keys are walked in tiles of 64, counted from position 0 of the query's own request:

    positions   0 ....... 63 | 64 ...... 127 | 128 .. 150 |
    tile             0       |       1       |      2     |   always in this order, always 64 wide

    1. scores of a tile: one product [M, dim] x [dim, 64]; what the query doesn't see becomes -inf
    2. the largest score over all tiles: exact, whatever the order
    3. weights exp(score - largest); their sum, and their product with the tile's values
    4. sums and products of the tiles, added one tile after the other; one quotient at the end

A tile of which the query sees nothing has weights of exactly 0, and adds 0 in step 4, which changes
no bit. So tiles outside a window may be left out or not, and a row may share a call with a
longer one.
M is rounded up to sizes of which `ScoreTiles` has tried that they agree. Prefill, decode, a chunk,
a draft: every query goes through the same four steps over the same tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..inputs import BoolArray, GroupInputs, IntArray, StepInputs
from ..row_tiles import NARROWEST, NotExact
from .pool import KVPool
from .scores import Scoring
from .visible import Keys, keys_by_length, keys_by_mask

TILE = 64
"""Keys in a tile."""

QUERY_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Queries of a row that share a call; rows are cut and rounded up to these."""

UNITS = (4, 8, 16, 32)
"""M is rounded up to a multiple of one of these: of the first with which all sizes agree."""


class ScoreTiles:
    """To what multiple M is rounded up, by the shape of the products. One for a model."""

    def __init__(self) -> None:
        self._units: dict[tuple[int, int, int, int], int] = {}

    def unit(self, per_kv_head: int, dim: int, value_dim: int) -> int:
        """For `per_kv_head` query heads on a KV head. Tried when first asked, then remembered.

        Raises `NotExact` if none will do.
        """
        key = (per_kv_head, dim, value_dim, torch.get_num_threads())
        if key not in self._units:
            self._units[key] = _unit_that_agrees(per_kv_head, dim, value_dim)
        return self._units[key]


def _unit_that_agrees(per_kv_head: int, dim: int, value_dim: int) -> int:
    numbers = torch.Generator().manual_seed(0)
    keys = torch.randn(_BATCH, TILE, dim, generator=numbers)
    values = torch.randn(_BATCH, TILE, max(value_dim, NARROWEST), generator=numbers)
    for unit in UNITS:
        sizes = [_rounded_up(count * per_kv_head, unit) for count in QUERY_COUNTS]
        queries = torch.randn(_BATCH, sizes[-1], dim, generator=numbers)
        weights = torch.rand(_BATCH, sizes[-1], TILE, generator=numbers)
        if _agree(lambda rows, b: rows @ keys[b].mT, queries, sizes) and _agree(
            lambda rows, b: rows @ values[b], weights, sizes
        ):
            return unit
    raise NotExact(
        "exact: on this machine an attention score depends on the queries beside it, with "
        f"{torch.get_num_threads()} threads; try OMP_NUM_THREADS=1, or leave exact off"
    )


_BATCH = 24
"""Products in one call of the trial; the same products are tried alone too."""


def _agree(product: Callable[[Tensor, slice], Tensor], rows: Tensor, sizes: list[int]) -> bool:
    """Whether a row comes out the same among `sizes` rows, at either end of them, in any batch."""
    expected = product(rows, slice(None))
    alone = torch.cat([product(rows[b : b + 1], slice(b, b + 1)) for b in range(len(rows))])
    return torch.equal(alone, expected) and all(
        torch.equal(product(rows[:count, part], slice(count)), expected[:count, part])
        for count in (1, 2, 5, len(rows))
        for size in sizes
        for part in (slice(size), slice(-size, None))
    )


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class _Part(NamedTuple):
    """Rows that share a call: N of them, Q queries each, over J tiles."""

    tokens: Tensor | None  # [N * Q] into the step's tokens, any where there is none; None = all
    wanted: Tensor | None  # [W] into N * Q; None = all
    slots: Tensor  # [N, J, TILE]
    hidden: Tensor  # [N, J, 1, 1, Q, TILE] what the query doesn't see
    unseen: Tensor  # [N, J, 1, TILE] what none of the row's queries sees


class ExactAttention:
    """Attention of one KV group in one step, planned once and carried out layer by layer.

    An explicit mask is followed to the letter: what it shows of others is walked behind the
    query's own tiles. `nan_scrubbed`: slots may hold NaN, and no query may meet it that doesn't
    see it.
    """

    def __init__(
        self,
        inputs: StepInputs,
        group: GroupInputs,
        pool: KVPool,
        *,
        tiles: ScoreTiles,
        nan_scrubbed: bool = False,
    ) -> None:
        self._pool = pool
        self._tiles = tiles
        self._past_nan = nan_scrubbed or group.mask is not None
        every_token = np.arange(len(inputs.tokens))
        self._parts = [
            _part(keys, every_token, pool.device) for keys in _keys(inputs, group, pool.block_size)
        ]
        self._vectors: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; the step's KV is in the pool."""
        shape = self._pool.shapes[layer]
        vectors = self._vectors_of(shape.kv_heads)
        out = None
        for part, (index, unseen) in zip(self._parts, vectors, strict=True):
            keys, values = self._pool.gather_vectors(layer, index)
            values = values.float().index_fill_(0, unseen, 0)  # 0 * inf of a stale slot is NaN
            of_part = self._attend(
                part,
                query if part.tokens is None else query[part.tokens],
                keys.float().view(-1, TILE, keys.shape[-1]),
                values.view(-1, TILE, values.shape[-1]),
                scoring,
            ).to(query.dtype)
            if part.tokens is None:
                return of_part
            if out is None:
                out = query.new_zeros(*query.shape[:2], shape.value_dim)
            if part.wanted is None:
                out[part.tokens] = of_part
            else:
                out[part.tokens[part.wanted]] = of_part[part.wanted]
        return query.new_zeros(*query.shape[:2], shape.value_dim) if out is None else out

    def _vectors_of(self, kv_heads: int) -> list[tuple[Tensor, Tensor]]:
        """For each part, the vectors to gather [N * J * kv_heads * TILE], and which of them nobody
        sees."""
        if kv_heads not in self._vectors:
            heads = torch.arange(kv_heads, device=self._pool.device)[:, None]
            self._vectors[kv_heads] = [
                (
                    (part.slots[:, :, None] * kv_heads + heads).flatten(),
                    part.unseen.expand(-1, -1, kv_heads, -1).flatten().nonzero().flatten(),
                )
                for part in self._parts
            ]
        return self._vectors[kv_heads]

    def _attend(
        self, part: _Part, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring
    ) -> Tensor:
        """query [N * Q, heads, dim], keys and values [N * J * kv_heads, TILE, dim] ->
        [N * Q, heads, value_dim]."""
        rows, tiles, _ = part.slots.shape
        queries = part.hidden.shape[4]
        heads, dim = query.shape[1:]
        kv_heads = len(keys) // (rows * tiles)
        used = heads // kv_heads * queries
        size = _rounded_up(used, self._tiles.unit(heads // kv_heads, dim, values.shape[-1]))
        by_head = query.view(rows, queries, kv_heads, -1, dim).permute(0, 2, 3, 1, 4)
        q = keys.new_zeros(rows, tiles, kv_heads, size, dim)
        q[..., :used, :].unflatten(3, (-1, queries)).copy_(by_head[:, None]).mul_(scoring.scaling)
        scores = torch.bmm(q.flatten(0, 2), keys.mT)
        if scoring.softcap is not None:
            scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
        scores = scores.view(rows, tiles, kv_heads, size, TILE)
        by_query = scores[..., :used, :].unflatten(3, (-1, queries))
        by_query.masked_fill_(part.hidden, float("-inf"))
        poisoned = None
        if self._past_nan and values.sum().isnan():
            values, poisoned = _without_nan(part, values)
        largest = scores.amax(dim=(1, 4))  # [N, kv_heads, M]
        total = None
        if scoring.sinks is not None:
            sinks = scoring.sinks.float().view(kv_heads, -1, 1).expand(-1, -1, queries)
            sinks = pad(sinks.flatten(1), (0, size - used))
            largest = torch.maximum(largest, sinks)
            total = torch.exp(sinks - largest)
        weights = scores.sub_(largest[:, None, :, :, None]).exp_()
        out = _added_up(weights, values, total)[:, :, :used].unflatten(2, (-1, queries))
        if poisoned is not None:
            out = out.masked_fill(poisoned, float("nan"))
        return out.permute(0, 3, 1, 2, 4).reshape(rows * queries, heads, -1)


def _added_up(weights: Tensor, values: Tensor, total: Tensor | None) -> Tensor:
    """weights [N, J, kv_heads, M, TILE], values [N * J * kv_heads, TILE, value_dim], total
    [N, kv_heads, M] of what has no value -> [N, kv_heads, M, value_dim]."""
    value_dim = values.shape[-1]
    if value_dim < NARROWEST:
        values = pad(values, (0, NARROWEST - value_dim))
    sums = weights.sum(dim=-1)
    products = torch.bmm(weights.flatten(0, 2), values)[..., :value_dim]
    products = products.unflatten(0, weights.shape[:3])
    total = sums[:, 0] if total is None else total + sums[:, 0]
    out = products[:, 0]
    for tile in range(1, weights.shape[1]):
        total = total + sums[:, tile]
        out = out + products[:, tile]
    return (out / total[..., None]).add_(0.0)  # -0, to which no tile was added, becomes 0


def _without_nan(part: _Part, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values with zeros where there was NaN, and [N, 1, 1, Q, 1] whether a query sees any of it."""
    stale = values.isnan().any(dim=-1)  # [N * J * kv_heads, TILE]
    by_key = stale.view(*part.slots.shape[:2], -1, TILE).any(dim=2)[:, :, None, None, None]
    seen = (by_key & ~part.hidden).any(dim=(1, 5))  # [N, 1, 1, Q]
    return values.masked_fill(stale[..., None], 0), seen[..., None]


def _keys(inputs: StepInputs, group: GroupInputs, block_size: int) -> Iterator[Keys]:
    if group.mask is None:
        return keys_by_length(inputs, group, block_size, TILE, QUERY_COUNTS)
    return keys_by_mask(inputs, group, group.mask, block_size, TILE, QUERY_COUNTS)


def _part(keys: Keys, every_token: IntArray, device: torch.device) -> _Part:
    hidden: BoolArray = ~keys.visible  # [N, Q, K]
    rows, queries, width = hidden.shape
    by_tile = hidden.reshape(rows, queries, width // TILE, TILE).transpose(0, 2, 1, 3)
    some = keys.slots.max(axis=1, keepdims=True).clip(0)  # of its own row, never somebody else's
    slots: IntArray = np.where(keys.slots >= 0, keys.slots, some)
    tokens = keys.tokens.ravel()
    present = np.flatnonzero(tokens >= 0)
    return _Part(
        tokens=None
        if np.array_equal(tokens, every_token)
        else torch.from_numpy(tokens.clip(0)).to(device),
        wanted=None if len(present) == len(tokens) else torch.from_numpy(present).to(device),
        slots=torch.from_numpy(slots.reshape(rows, -1, TILE)).to(device),
        hidden=torch.from_numpy(np.ascontiguousarray(by_tile)).to(device)[:, :, None, None],
        unseen=torch.from_numpy(by_tile.all(axis=2)).to(device)[:, :, None],
    )
