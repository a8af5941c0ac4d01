"""From the scheduler's rows to the arrays that the device is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .config import EngineConfig
from .decisions import Mask, Positions, RowShape, Slots, Table, slots_of
from .inputs import BlockMove, BoolArray, GroupInputs, StepInputs
from .journal import Journal
from .rows import Row
from .runner import KVGroup
from .sampling import Sample

Tables = list[tuple[int, ...]]


class InputBuilder:
    """Puts the questions of each row: its table and slots in each KV group, its positions and,
    with an explicit mask, its mask. Their ids count the row's sequence length after the step."""

    def __init__(self, config: EngineConfig, journal: Journal, groups: Sequence[KVGroup]) -> None:
        self._config = config
        self._journal = journal
        self._groups = groups

    def build(self, rows: tuple[Row, ...], moves: tuple[BlockMove, ...] = ()) -> StepInputs:
        samples = [_samples(row, number) for number, row in enumerate(rows)]
        query_lens = np.array([row.query_len for row in rows], dtype=np.int64)
        return StepInputs(
            step=self._journal.step,
            requests=tuple(row.request.name for row in rows),
            phases=tuple(row.phase for row in rows),
            query_lens=query_lens,
            seq_lens=np.array([row.seq_len for row in rows], dtype=np.int64),
            tokens=tokens_of(rows),
            positions=_joined([self._positions(row) for row in rows]),
            groups=tuple(self._group(number, rows) for number in range(len(self._groups))),
            logit_tokens=_logit_tokens(rows, samples, query_lens),
            samples=tuple(sample for of_row in samples for sample in of_row),
            drafts=np.array([len(row.drafts) for row in rows], dtype=np.int64),
            layout="packed",
            moves=moves,
        )

    def _group(self, number: int, rows: tuple[Row, ...]) -> GroupInputs:
        tables = [self._table(row, number) for row in rows]
        slots = [self._slots(row, t, number) for row, t in zip(rows, tables, strict=True)]
        group = self._groups[number]
        return GroupInputs(
            block_tables=_padded(tables),
            slot_mapping=_joined(slots),
            layers=group.layers if len(self._groups) > 1 else None,
            window=group.window,
            mask=self._mask(rows, tables, number) if self._config.explicit_mask else None,
        )

    def _table(self, row: Row, group: int) -> tuple[int, ...]:
        id = self._journal.id("table", row.request, row.seq_len, group)
        entries = row.request.tables[group].entries()
        return self._journal.decide(Table(id, entries, row.seq_len, self._config.block_size))

    def _slots(self, row: Row, table: tuple[int, ...], group: int) -> tuple[int, ...]:
        id = self._journal.id("slots", row.request, row.seq_len, group)
        size = self._config.block_size
        return self._journal.decide(Slots(id, table, row.computed, row.query_len, size))

    def _positions(self, row: Row) -> tuple[int, ...]:
        id = self._journal.id("positions", row.request, row.seq_len)
        return self._journal.decide(Positions(id, row.computed, row.query_len))

    def _mask(self, rows: tuple[Row, ...], tables: Tables, group: int) -> BoolArray:
        """Bool [T, num_slots]: the rows of all requests, one under the other."""
        size = self._config.block_size
        shapes = tuple(
            RowShape(
                row.request.name,
                row.phase,
                row.query_len,
                row.seq_len,
                slots_of(table, range(row.seq_len), size),
                self._groups[group].window,
            )
            for row, table in zip(rows, tables, strict=True)
        )
        width = self._config.num_blocks * size
        return np.concatenate(
            [
                self._journal.decide(
                    Mask(
                        self._journal.id("mask", row.request, row.seq_len, group), i, shapes, width
                    )
                )
                for i, row in enumerate(rows)
            ]
        )


def tokens_of(rows: Sequence[Row]) -> np.ndarray:
    """[T] the rows' tokens, drafts included; 0 stands for one that a step in flight will choose."""
    tokens: list[int] = []
    for row in rows:
        known = row.request.tokens[row.computed : row.seq_len - len(row.drafts)]
        unknown = row.query_len - len(known) - len(row.drafts)
        tokens += [*known, *[0] * unknown, *row.drafts]
    return np.array(tokens, dtype=np.int64)


def _samples(row: Row, number: int) -> tuple[Sample, ...]:
    """What the row chooses: a token, one more behind each draft, or the first one of each fork."""
    if not row.samples:
        return ()
    first = row.seq_len - len(row.drafts)
    own = row.request
    behind = (
        Sample(own.name, index, number, own.sampling) for index in range(first, row.seq_len + 1)
    )
    forked = (Sample(fork.name, first, number, fork.sampling) for fork in row.forks)
    return (*behind, *forked)


def _logit_tokens(
    rows: Sequence[Row], samples: Sequence[Sequence[Sample]], query_lens: np.ndarray
) -> np.ndarray:
    """[S] the token behind which each sample is chosen."""
    ends = np.cumsum(query_lens).tolist()
    wanted = [
        ends[number] - 1 - (row.seq_len - sample.index)
        for number, row in enumerate(rows)
        for sample in samples[number]
    ]
    return np.array(wanted, dtype=np.int64)


def _joined(parts: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array([value for part in parts for value in part], dtype=np.int64)


def _padded(tables: Tables) -> np.ndarray:
    padded = np.full((len(tables), max(map(len, tables))), -1, dtype=np.int64)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table
    return padded
