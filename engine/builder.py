"""From the scheduler's rows to the arrays that the device is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

import numpy as np

from .buffers import is_capturable, padded_to_capture
from .config import EngineConfig
from .geometry import first_seen_block, slots_of
from .inputs import BlockMove, BoolArray, GroupInputs, Layout, MaskKeys, StepInputs
from .journal import Journal
from .layout import DeviceRow, Pad, lay_out
from .plain_build import Shape
from .questions import Mask, PadSlots, Positions, RowShape, Slots, Table
from .rows import Row
from .runner import KVGroup
from .sampling import Sample

Tables = list[tuple[int, ...]]

MASK_KEYS: Mapping[Layout, MaskKeys] = {
    "packed": "pool",
    "padded-left": "per_row",
    "padded-right": "per_row",
    "dense": "concatenated",
}
"""What the columns of an explicit mask are."""


class InputBuilder:
    """Puts the questions of each row: its table and slots in each KV group, its positions and,
    with an explicit mask, its mask. Their ids count the row's sequence length after the step."""

    def __init__(self, config: EngineConfig, journal: Journal, groups: Sequence[KVGroup]) -> None:
        self._config = config
        self._journal = journal
        self._groups = groups

    def lay_out(self, rows: tuple[Row, ...]) -> tuple[DeviceRow, ...]:
        """The rows as the device has them, pads included."""
        if self._config.persistent_buffers and is_capturable(rows):
            return padded_to_capture(rows)
        return lay_out(rows, self._config.layout)

    def build(self, rows: tuple[DeviceRow, ...], moves: tuple[BlockMove, ...] = ()) -> StepInputs:
        samples = [_samples(row, number) for number, row in enumerate(rows)]
        query_lens = np.array([row.query_len for row in rows], dtype=np.int64)
        seq_lens = np.array([row.seq_len for row in rows], dtype=np.int64)
        if self._journal.asks_builders or self._config.explicit_mask:
            positions = _joined([self._positions(row) for row in rows])
            groups = tuple(self._group(number, rows) for number in range(len(self._groups)))
        else:
            shape = Shape.of([not isinstance(row, Row) for row in rows], query_lens, seq_lens)
            positions = shape.positions
            groups = tuple(self._plain_group(n, rows, shape) for n in range(len(self._groups)))
        return StepInputs(
            step=self._journal.step,
            requests=tuple([row.request.name if isinstance(row, Row) else None for row in rows]),
            phases=tuple([row.phase for row in rows]),
            query_lens=query_lens,
            seq_lens=seq_lens,
            tokens=tokens_of(rows),
            positions=positions,
            groups=groups,
            logit_tokens=_logit_tokens(rows, samples, query_lens),
            samples=tuple(chain.from_iterable(samples)),
            drafts=np.array([len(row.drafts) for row in rows], dtype=np.int64),
            layout=self._config.layout,
            mask_keys=MASK_KEYS[self._config.layout],
            moves=moves,
        )

    def _plain_group(self, number: int, rows: tuple[DeviceRow, ...], shape: Shape) -> GroupInputs:
        """What `_group` gives where every question has its reference answer."""
        group, size = self._groups[number], self._config.block_size
        held = [row.request.tables[number] if isinstance(row, Row) else None for row in rows]
        tables = shape.tables(held, size)
        if group.window is not None:
            for row, table in zip(rows, tables, strict=True):
                table[: self._first_seen(row, number)] = -1
        return GroupInputs(
            block_tables=tables,
            slot_mapping=shape.slots(tables, size),
            layers=group.layers if len(self._groups) > 1 else None,
            window=group.window,
        )

    def _group(self, number: int, rows: tuple[DeviceRow, ...]) -> GroupInputs:
        tables = [self._table(row, number) if isinstance(row, Row) else () for row in rows]
        group = self._groups[number]
        return GroupInputs(
            block_tables=_padded(tables),
            slot_mapping=_joined(self._slot_mapping(rows, tables, number)),
            layers=group.layers if len(self._groups) > 1 else None,
            window=group.window,
            mask=self._mask(rows, tables, number) if self._config.explicit_mask else None,
        )

    def _slot_mapping(
        self, rows: tuple[DeviceRow, ...], tables: Tables, group: int
    ) -> list[tuple[int, ...]]:
        """The slots of every row's tokens; a pad's, which are decided after its row's."""
        own = {
            row: self._slots(row, table, group)
            for row, table in zip(rows, tables, strict=True)
            if isinstance(row, Row)
        }
        pads = Counter(row for row in rows if isinstance(row, Pad))
        of_pads = {
            pad: iter(self._pad_slots(pad, count, own[pad.beside], group))
            for pad, count in pads.items()
        }
        return [
            own[row] if isinstance(row, Row) else tuple(islice(of_pads[row], row.query_len))
            for row in rows
        ]

    def _pad_slots(
        self, pad: Pad, count: int, beside: tuple[int, ...], group: int
    ) -> tuple[int, ...]:
        """Of all pads beside one row: they are one decision."""
        id = self._journal.id("pad", pad.beside.request, pad.beside.decision_index, group)
        return self._journal.decide(PadSlots(id, count * pad.query_len, beside))

    def _table(self, row: Row, group: int) -> tuple[int, ...]:
        id = self._journal.id("table", row.request, row.decision_index, group)
        entries = row.request.tables[group].entries()
        first, size = self._first_seen(row, group), self._config.block_size
        return self._journal.decide(Table(id, entries, row.seq_len, size, first))

    def _first_seen(self, row: DeviceRow, group: int) -> int:
        """Blocks before it may be given back while the step is under way."""
        if isinstance(row, Pad):
            return 0
        return first_seen_block(row.computed, self._groups[group].window, self._config.block_size)

    def _slots(self, row: Row, table: tuple[int, ...], group: int) -> tuple[int, ...]:
        id = self._journal.id("slots", row.request, row.decision_index, group)
        size = self._config.block_size
        return self._journal.decide(Slots(id, table, row.computed, row.query_len, size))

    def _positions(self, row: DeviceRow) -> tuple[int, ...]:
        if isinstance(row, Pad):
            return (0,) * row.query_len
        id = self._journal.id("positions", row.request, row.decision_index)
        return self._journal.decide(Positions(id, row.computed, row.query_len))

    def _mask(self, rows: tuple[DeviceRow, ...], tables: Tables, group: int) -> BoolArray:
        """Bool [T, keys]: the rows of all requests, one under the other; pads see nothing."""
        window = self._groups[group].window
        shapes = tuple(
            RowShape(
                row.request.name if isinstance(row, Row) else None,
                row.phase,
                row.query_len,
                row.seq_len,
                columns,
                window,
            )
            for row, columns in zip(rows, self._columns(rows, tables), strict=True)
        )
        width = self._mask_width(rows)
        return np.concatenate(
            [
                self._row_mask(row, number, shapes, width, group)
                if isinstance(row, Row)
                else np.zeros((row.query_len, width), dtype=bool)
                for number, row in enumerate(rows)
            ]
        )

    def _row_mask(
        self, row: Row, number: int, shapes: tuple[RowShape, ...], width: int, group: int
    ) -> BoolArray:
        id = self._journal.id("mask", row.request, row.decision_index, group)
        return self._journal.decide(Mask(id, number, shapes, width))

    def _mask_width(self, rows: tuple[DeviceRow, ...]) -> int:
        match MASK_KEYS[self._config.layout]:
            case "pool":
                return self._config.num_blocks * self._config.block_size
            case "per_row":
                return max(row.seq_len for row in rows)
            case "concatenated":
                return sum(row.seq_len for row in rows)

    def _columns(self, rows: tuple[DeviceRow, ...], tables: Tables) -> Iterator[tuple[int, ...]]:
        """Column of the mask that is each of the row's keys, -1 in a hole of its table."""
        keys, size = MASK_KEYS[self._config.layout], self._config.block_size
        start = 0
        for row, table in zip(rows, tables, strict=True):
            slots = slots_of(table, range(row.seq_len), size)
            if keys == "pool":
                yield slots
                continue
            yield tuple(-1 if slot < 0 else start + i for i, slot in enumerate(slots))
            start += row.seq_len if keys == "concatenated" else 0


def tokens_of(rows: Sequence[DeviceRow]) -> np.ndarray:
    """[T] the rows' tokens, drafts included; 0 in pads, and for one that a step in flight will
    choose."""
    tokens: list[int] = []
    for row in rows:
        if isinstance(row, Pad):
            tokens += [0] * row.query_len
            continue
        request, computed, query_len, _, drafts, _, _ = row
        known = request.tokens[computed : computed + query_len - len(drafts)]
        tokens += known
        unknown = query_len - len(known) - len(drafts)
        if unknown:
            tokens += [0] * unknown
        tokens += drafts
    return np.array(tokens, dtype=np.int64)


def _samples(row: DeviceRow, number: int) -> tuple[Sample, ...]:
    """What the row chooses: a token, one more behind each draft, or the first one of each fork."""
    if isinstance(row, Pad) or not row.samples:
        return ()
    own, last = row.request, row.seq_len
    if not row.drafts and not row.forks:
        return (Sample(own.name, last, number, own.sampling),)
    first = last - len(row.drafts)
    behind = (Sample(own.name, index, number, own.sampling) for index in range(first, last + 1))
    forked = (Sample(fork.name, first, number, fork.sampling) for fork in row.forks)
    return (*behind, *forked)


def _logit_tokens(
    rows: Sequence[DeviceRow], samples: Sequence[Sequence[Sample]], query_lens: np.ndarray
) -> np.ndarray:
    """[S] the token behind which each sample is chosen."""
    ends = np.cumsum(query_lens).tolist()
    wanted = [
        end - 1 - (row.seq_len - sample.index)
        for row, end, of_row in zip(rows, ends, samples, strict=True)
        for sample in of_row
    ]
    return np.array(wanted, dtype=np.int64)


def _joined(parts: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array([value for part in parts for value in part], dtype=np.int64)


def _padded(tables: Tables) -> np.ndarray:
    padded = np.full((len(tables), max(map(len, tables))), -1, dtype=np.int64)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table
    return padded
