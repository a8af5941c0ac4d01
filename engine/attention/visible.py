"""Which keys the queries of a step see, row by row, in an order of the row's own.

A row's keys are its own tokens from the front on, cut into tiles of one width; behind them what an
explicit mask shows it of others. A row of many queries is cut into pieces, each a row here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..inputs import BoolArray, GroupInputs, IntArray, StepInputs
from .tables import table_span

MANY_QUERIES = 32
"""From here on a tile that only others need costs more than a call of one's own."""


class Keys(NamedTuple):
    """N pieces of rows, with Q queries and K keys each."""

    tokens: IntArray  # [N, Q] into the step's tokens, -1 = none
    slots: IntArray  # [N, K] -1 = a hole, or past the end
    visible: BoolArray  # [N, Q, K] nothing where there is no token or no slot


class _Pieces(NamedTuple):
    """P pieces: which row each is of, which of its queries, and where they stand."""

    rows: IntArray  # [P]
    tokens: IntArray  # [P] first token, into the step's
    counts: IntArray  # [P] queries
    first: IntArray  # [P] position of the first query

    def take(self, chosen: Sequence[int]) -> _Pieces:
        return _Pieces(*(column[list(chosen)] for column in self))

    @property
    def lengths(self) -> IntArray:
        """[P] tokens of the row up to the last query."""
        return self.first + self.counts

    def queries(self, width: int) -> tuple[IntArray, IntArray]:
        """[P, width] token and position of each query, -1 behind the last."""
        index = np.arange(width)
        used = index < self.counts[:, None]
        return (
            np.where(used, self.tokens[:, None] + index, -1),
            np.where(used, self.first[:, None] + index, -1),
        )


def keys_by_length(
    inputs: StepInputs,
    group: GroupInputs,
    block_size: int,
    tile: int,
    query_counts: Sequence[int],
) -> Iterator[Keys]:
    """By tables and lengths: causal, inside the window. Tiles before the window are left out.

    Pieces share a call whose numbers of queries round up to one of `query_counts`, and whose
    numbers of tiles are within a factor of two, or equal where there are many queries.
    """
    pieces = _cut(inputs, query_counts[-1])
    start = np.zeros_like(pieces.first)
    if group.window is not None:
        start = np.maximum(pieces.first - group.window + 1, 0) // tile
    tiles = -(-pieces.lengths // tile) - start
    for width, members in _alike(pieces, tiles, query_counts).items():
        chosen = pieces.take(members)
        positions = start[members, None] * tile + np.arange(tiles[members].max() * tile)
        slots = _slots(group.block_tables[chosen.rows], positions, block_size)
        slots[positions >= chosen.lengths[:, None]] = -1
        tokens, asking = chosen.queries(width[0])
        visible = positions[:, None] <= asking[:, :, None]
        if group.window is not None:
            visible &= asking[:, :, None] - positions[:, None] < group.window
        yield Keys(tokens, slots, visible & (slots >= 0)[:, None])


def keys_by_mask(
    inputs: StepInputs,
    group: GroupInputs,
    mask: BoolArray,
    block_size: int,
    tile: int,
    query_counts: Sequence[int],
) -> Iterator[Keys]:
    """By an explicit mask [T, columns], piece by piece."""
    pieces = _cut(inputs, query_counts[-1])
    columns = _Columns.of(inputs, group, mask.shape[1], block_size)
    for number in range(len(pieces.rows)):
        piece = pieces.take([number])
        own, slots = columns.of_row(int(piece.rows[0]))
        shown = mask[piece.tokens[0] :][: piece.counts[0]]  # [queries, columns]
        others = np.setdiff1d(np.flatnonzero(shown.any(axis=0)), own)
        order = np.concatenate([_filled(own, tile), _filled(others, tile)])
        slots = np.where(order >= 0, slots[order], -1)
        tokens, _ = piece.queries(_rounded_up(len(shown), query_counts))
        visible = np.zeros((1, tokens.shape[1], len(order)), dtype=bool)
        visible[0, : len(shown)] = shown[:, order] & (slots >= 0)
        yield Keys(tokens, slots[None], visible)


class _Columns(NamedTuple):
    """What the columns of an explicit mask are."""

    of_rows: list[IntArray]
    """[R] of [L]: the column of each of the row's own tokens, -1 in a hole."""
    slots: IntArray | list[IntArray]
    """[columns]; or one such for each row."""

    @classmethod
    def of(cls, inputs: StepInputs, group: GroupInputs, width: int, block_size: int) -> _Columns:
        rows = range(len(inputs.seq_lens))
        lengths = inputs.seq_lens.tolist()

        def slots(row: int, count: int) -> IntArray:
            return _slots(group.block_tables[[row]], np.arange(count)[None], block_size)[0]

        by_row = [slots(row, lengths[row]) for row in rows]
        match inputs.mask_keys:
            case "pool":
                return cls(by_row, np.arange(width))
            case "concatenated":
                starts = np.cumsum(lengths) - lengths
                own = [start + np.arange(n) for start, n in zip(starts, lengths, strict=True)]
                return cls(own, np.concatenate(by_row))
            case "per_row":
                return cls([np.arange(n) for n in lengths], [slots(row, width) for row in rows])

    def of_row(self, row: int) -> tuple[IntArray, IntArray]:
        """[L] columns of its own tokens, [columns] slots."""
        slots = self.slots[row] if isinstance(self.slots, list) else self.slots
        return self.of_rows[row], slots


def _cut(inputs: StepInputs, longest: int) -> _Pieces:
    """Live rows, in pieces of at most `longest` queries. No pads."""
    live = inputs.seq_lens > 0
    counts = np.where(live, -(-inputs.query_lens // longest), 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    offset = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * longest
    return _Pieces(
        rows=rows,
        tokens=inputs.row_starts[rows] + offset,
        counts=np.minimum(inputs.query_lens[rows] - offset, longest),
        first=(inputs.seq_lens - inputs.query_lens)[rows] + offset,
    )


def _alike(
    pieces: _Pieces, tiles: IntArray, query_counts: Sequence[int]
) -> dict[tuple[int, int], list[int]]:
    """Pieces by the number of queries that they are rounded up to, and by their class of length."""
    alike: dict[tuple[int, int], list[int]] = {}
    doubling = np.ceil(np.log2(tiles)).astype(np.int64)
    classes = np.where(pieces.counts < MANY_QUERIES, doubling, tiles).tolist()
    for number, (count, length) in enumerate(zip(pieces.counts.tolist(), classes, strict=True)):
        alike.setdefault((_rounded_up(count, query_counts), length), []).append(number)
    return alike


def _rounded_up(count: int, counts: Sequence[int]) -> int:
    return next(n for n in counts if n >= count)


def _slots(tables: IntArray, positions: IntArray, block_size: int) -> IntArray:
    """tables [N, W], positions [N, K] from some block's first on -> [N, K] slots, -1 in a hole."""
    index = positions // block_size
    width = max(int(index.max(initial=-1)) + 1, 1)
    count = np.full(len(tables), width)
    blocks = np.take_along_axis(table_span(tables, np.zeros_like(count), count), index, axis=1)
    return np.where(blocks >= 0, blocks * block_size + positions % block_size, -1)


def _filled(columns: IntArray, tile: int) -> IntArray:
    """Up to whole tiles, with -1."""
    return np.pad(columns, (0, -len(columns) % tile), constant_values=-1)
