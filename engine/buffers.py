"""Buffers that decode steps are built in, over and over: what a captured graph reads.

A CUDA graph replays with the addresses that it was captured with, so engines rebuild their inputs
in place, padded to a captured size. The machinery is the same without a graph, and so are its
faults: an array that wasn't rebuilt, a stride that isn't the captured one, a buffer that is
rebuilt while the device still reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..recorder.events import GraphReplayed
from .inputs import BufferUse, GroupInputs, IntArray, StepInputs
from .journal import Journal
from .layout import DeviceRow, padded_to
from .questions import Replay, Staging
from .rows import Row


def captured_size(count: int) -> int:
    """The sizes that are captured: powers of two."""
    return 1 << (count - 1).bit_length()


def is_capturable(rows: Sequence[Row]) -> bool:
    """Whether a captured step can do it: one-token decode rows and nothing else."""
    return all(row.phase == "decode" and row.query_len == 1 for row in rows)


def padded_to_capture(rows: Sequence[Row]) -> tuple[DeviceRow, ...]:
    return padded_to(rows, captured_size(len(rows)))


class DecodeBuffer:
    """The arrays of one captured size: `rows` one-token rows, block tables `stride` wide."""

    def __init__(self, name: str, rows: int, stride: int, groups: int) -> None:
        self.name = name
        self.stamp = 0
        """How often it has been rebuilt."""
        self._rows, self._stride = rows, stride
        self._row_arrays = {
            key: np.zeros(rows, dtype=np.int64)
            for key in ("query_lens", "seq_lens", "tokens", "positions")
        }
        self._slots = [np.full(rows, -1, dtype=np.int64) for _ in range(groups)]
        self._tables = [np.full(rows * stride, -1, dtype=np.int64) for _ in range(groups)]
        self._before: StepInputs | None = None
        """What the build before this one left here."""

    def rebuild(self, inputs: StepInputs) -> StepInputs:
        """The same step, its arrays standing in this buffer's memory."""
        self._before = self._copied(inputs) if self.stamp else None
        self.stamp += 1
        for key, array in self._row_arrays.items():
            array[:] = getattr(inputs, key)
        for number, group in enumerate(inputs.groups):
            self._slots[number][:] = group.slot_mapping
            tables = self._table_rows(number)
            tables.fill(-1)
            tables[:, : group.block_tables.shape[1]] = group.block_tables
        return replace(
            inputs,
            **self._row_arrays,
            groups=tuple(self._group(n, group) for n, group in enumerate(inputs.groups)),
            buffer=BufferUse(self.name, self.stamp, self._stride),
        )

    def read(self, inputs: StepInputs, use: BufferUse) -> StepInputs:
        """What the device meets when it replays `use` for this step: with an older stamp the
        arrays of the build before, with another stride the tables as they lie in memory."""
        source = inputs if use.stamp == self.stamp or self._before is None else self._before
        groups = [
            replace(group, block_tables=self._strided(group.block_tables, use.stride))
            for group in source.groups
        ]
        arrays = {key: getattr(source, key) for key in self._row_arrays}
        return replace(inputs, **arrays, groups=tuple(groups), buffer=use)

    def _strided(self, tables: IntArray, stride: int) -> IntArray:
        """[rows, stride] row r begins at r x stride, whatever stands there; -1 past the end."""
        if stride == self._stride:
            return tables
        needed = self._rows * stride
        flat = np.full(max(needed, tables.size), -1, dtype=np.int64)
        flat[: tables.size] = tables.ravel()
        return flat[:needed].reshape(self._rows, stride)

    def _copied(self, inputs: StepInputs) -> StepInputs:
        """This buffer's arrays as they are now, in memory of their own."""
        groups = [
            replace(
                group,
                slot_mapping=self._slots[number].copy(),
                block_tables=self._table_rows(number).copy(),
            )
            for number, group in enumerate(inputs.groups)
        ]
        arrays = {key: array.copy() for key, array in self._row_arrays.items()}
        return replace(inputs, **arrays, groups=tuple(groups))

    def _group(self, number: int, group: GroupInputs) -> GroupInputs:
        return replace(
            group, slot_mapping=self._slots[number], block_tables=self._table_rows(number)
        )

    def _table_rows(self, number: int) -> IntArray:
        """[rows, stride], a view."""
        return self._tables[number].reshape(self._rows, self._stride)


class DecodeBuffers:
    """All captured sizes, each as often as steps may be in flight."""

    def __init__(self, journal: Journal, sets: int) -> None:
        self._journal = journal
        self._sets = sets
        self._buffers: dict[str, DecodeBuffer] = {}

    def stage(self, inputs: StepInputs, row: Row, in_use: Sequence[str]) -> StepInputs:
        """Rebuild the step in a buffer that no step in flight reads. `row` is its first one,
        after which the decision is named."""
        rows = len(inputs.requests)
        widest = max(group.block_tables.shape[1] for group in inputs.groups)
        size = f"decode-{rows}x{captured_size(max(widest, 1))}"
        names = tuple(f"{size}/{number}" for number in range(self._sets))
        id = self._journal.id("staging", row.request, row.decision_index)
        name: str = self._journal.decide(Staging(id, names, tuple(in_use)))
        if name not in self._buffers:
            stride = captured_size(max(widest, 1))
            self._buffers[name] = DecodeBuffer(name, rows, stride, len(inputs.groups))
        return self._buffers[name].rebuild(inputs)

    def replay(self, inputs: StepInputs, row: Row) -> StepInputs:
        """The step as the device meets it; rightly, that is what was just built."""
        assert inputs.buffer is not None, "only staged steps are replayed"
        id = self._journal.id("replay", row.request, row.decision_index)
        replayed: BufferUse = self._journal.decide(Replay(id, inputs.buffer))
        if self._journal.listening:
            self._journal.emit(
                GraphReplayed(
                    buffer=replayed.buffer,
                    stamp=replayed.stamp,
                    stride=replayed.stride,
                    rows=list(inputs.requests),
                    decision=str(id),
                )
            )
        if replayed == inputs.buffer:
            return inputs
        return self._buffers[replayed.buffer].read(inputs, replayed)
