"""From the scheduler's rows to the arrays that the device is given."""

from __future__ import annotations

import numpy as np

from .config import EngineConfig
from .decisions import Mask, Positions, RowShape, Slots, Table
from .inputs import BoolArray, StepInputs
from .journal import Journal
from .scheduler import Row


class InputBuilder:
    """Puts the four questions of each row: its table, slots, positions and, on the reference
    path, its mask. Their ids count the row's sequence length after the step."""

    def __init__(self, config: EngineConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal

    def build(self, rows: tuple[Row, ...]) -> StepInputs:
        tables = [self._table(row) for row in rows]
        slots = [self._slots(row, table) for row, table in zip(rows, tables, strict=True)]
        positions = [self._positions(row) for row in rows]
        return StepInputs(
            step=self._journal.step,
            requests=tuple(row.request.name for row in rows),
            phases=tuple(row.phase for row in rows),
            query_lens=np.array([row.query_len for row in rows], dtype=np.int64),
            seq_lens=np.array([row.seq_len for row in rows], dtype=np.int64),
            block_tables=_padded(tables),
            tokens=np.concatenate([_tokens(row) for row in rows]),
            positions=np.concatenate([np.array(p, dtype=np.int64) for p in positions]),
            slot_mapping=np.concatenate([np.array(s, dtype=np.int64) for s in slots]),
            mask=self._mask(rows, tables) if self._config.attention == "reference" else None,
        )

    def _table(self, row: Row) -> tuple[int, ...]:
        id = self._journal.id("table", row.request, row.seq_len)
        entries = row.request.table.entries()
        return self._journal.decide(Table(id, entries, row.seq_len, self._config.block_size))

    def _slots(self, row: Row, table: tuple[int, ...]) -> tuple[int, ...]:
        id = self._journal.id("slots", row.request, row.seq_len)
        size = self._config.block_size
        return self._journal.decide(Slots(id, table, row.computed, row.query_len, size))

    def _positions(self, row: Row) -> tuple[int, ...]:
        id = self._journal.id("positions", row.request, row.seq_len)
        return self._journal.decide(Positions(id, row.computed, row.query_len))

    def _mask(self, rows: tuple[Row, ...], tables: list[tuple[int, ...]]) -> BoolArray:
        """Bool [T, num_slots]: the rows of all requests, one under the other."""
        size = self._config.block_size
        shapes = tuple(
            RowShape(row.request.name, row.phase, row.query_len, row.seq_len, table)
            for row, table in zip(rows, tables, strict=True)
        )
        return np.concatenate(
            [
                self._journal.decide(
                    Mask(
                        self._journal.id("mask", row.request, row.seq_len),
                        i,
                        shapes,
                        size,
                        self._config.num_blocks * size,
                    )
                )
                for i, row in enumerate(rows)
            ]
        )


def _tokens(row: Row) -> np.ndarray:
    return np.array(row.request.tokens[row.computed : row.seq_len], dtype=np.int64)


def _padded(tables: list[tuple[int, ...]]) -> np.ndarray:
    padded = np.full((len(tables), max(map(len, tables))), -1, dtype=np.int64)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table
    return padded
