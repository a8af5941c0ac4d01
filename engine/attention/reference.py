"""The reference path: softmax(Q K^T * scale + mask) V, in plain torch.

One explicit mask, rows x keys, decides what every query sees. Slow and plain on purpose: a wrong
mask is wrong here as it is written down in the trace. What its columns are, the step says:

    pool           all slots of the pool
    concatenated   | keys of row 0 | keys of row 1 | ...
    per_row        | keys of the row, as many as the longest row has |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..inputs import BoolArray, GroupInputs, IntArray, StepInputs
from .pool import KVPool
from .scores import Scoring, attend_past_nan
from .tables import table_span, without_holes


class _Part(NamedTuple):
    """Queries that look at the same keys."""

    tokens: Tensor  # [Q] of the step's tokens
    blocks: Tensor | None  # [B] whose slots are the keys; None = the whole pool
    bias: Tensor  # [1, 1, Q, keys] 0 = visible, -inf = hidden


class ReferenceAttention:
    """Attention of one KV group in one step. `GroupInputs.mask` [T, keys] is required.

    Each query meets the slots of others, masked. NaN in them, be it of a scrubbed block or of a
    row that a wrong mask showed nothing, must not reach it that way.
    """

    def __init__(self, inputs: StepInputs, group: GroupInputs, pool: KVPool) -> None:
        assert group.mask is not None, "the reference path attends by an explicit mask"
        self._pool = pool
        self._parts = list(_parts(inputs, group, group.mask, pool))

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """query [T, heads, head_dim] -> [T, heads, value_dim]; the step's KV is in the pool."""
        outs = [self._attend(part, layer, query[part.tokens], scoring) for part in self._parts]
        out = query.new_zeros(*query.shape[:2], outs[0].shape[-1])
        for part, of_part in zip(self._parts, outs, strict=True):
            out[part.tokens] = of_part
        return out

    def _attend(self, part: _Part, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        if part.blocks is None:
            keys, values = self._pool.all_slots(layer)
        else:
            keys, values = self._pool.gather(layer, part.blocks)
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, keys, values))
        return attend_past_nan(q, k, v, part.bias, scoring)[0].transpose(0, 1)


def _parts(
    inputs: StepInputs, group: GroupInputs, mask: BoolArray, pool: KVPool
) -> Iterator[_Part]:
    """Pads are in no part: they attend to nothing."""
    rows = np.flatnonzero(inputs.seq_lens > 0).tolist()
    lines = [np.arange(*inputs.row_starts[row : row + 2]) for row in rows]
    if inputs.mask_keys == "per_row":
        for row, tokens in zip(rows, lines, strict=True):
            keys = _KeysOfRows.of(group, [row], [mask.shape[1]], pool.block_size)
            yield _part(tokens, keys.blocks, keys.widened(mask[tokens]), pool)
        return
    tokens = np.concatenate(lines)
    if inputs.mask_keys == "pool":
        yield _part(tokens, None, mask[tokens], pool)
        return
    every_row = list(range(len(inputs.requests)))
    keys = _KeysOfRows.of(group, every_row, inputs.seq_lens.tolist(), pool.block_size)
    yield _part(tokens, keys.blocks, keys.widened(mask[tokens]), pool)


def _part(tokens: IntArray, blocks: IntArray | None, visible: BoolArray, pool: KVPool) -> _Part:
    bias = torch.zeros(visible.shape, dtype=torch.float32, device=pool.device)
    bias.masked_fill_(~torch.from_numpy(visible).to(pool.device), float("-inf"))
    return _Part(
        tokens=torch.from_numpy(tokens).to(pool.device),
        blocks=None if blocks is None else torch.from_numpy(blocks).to(pool.device),
        bias=bias[None, None],
    )


class _KeysOfRows(NamedTuple):
    """The keys of some rows, one row's behind the other's, in whole blocks."""

    blocks: IntArray  # [B] to gather; a hole has a block of its own row in its place
    columns: IntArray  # [keys] where the mask's columns lie in the slots of these blocks
    readable: BoolArray  # [B * block_size] False in a hole

    @classmethod
    def of(
        cls, group: GroupInputs, rows: list[int], lengths: Sequence[int], block_size: int
    ) -> _KeysOfRows:
        counts = -(-np.asarray(lengths) // block_size)
        tables = table_span(group.block_tables[rows], np.zeros_like(counts), counts)
        used = np.arange(tables.shape[1]) < counts[:, None]
        starts = block_size * (np.cumsum(counts) - counts)
        columns = [start + np.arange(n) for start, n in zip(starts, lengths, strict=True)]
        return cls(
            blocks=without_holes(tables)[used],
            columns=np.concatenate(columns),
            readable=np.repeat(tables[used] >= 0, block_size),
        )

    def widened(self, mask: BoolArray) -> BoolArray:
        """A mask over the keys [Q, keys] as one over the slots of whole blocks."""
        wide = np.zeros((len(mask), len(self.readable)), dtype=bool)
        wide[:, self.columns] = mask
        return wide & self.readable
