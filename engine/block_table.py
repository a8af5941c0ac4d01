"""The block table of one request: logical index -> physical block."""

from __future__ import annotations

import numpy as np

from .inputs import IntArray

_FIRST_CAPACITY = 16


class BlockTable:
    """Entries may be missing in the middle (None): not yet mapped, or given back."""

    __slots__ = ("_array", "_entries")

    def __init__(self) -> None:
        self._entries: list[int | None] = []
        self._array = np.full(_FIRST_CAPACITY, -1, dtype=np.int64)
        """The same as the device has it, -1 for a missing one and beyond the end."""

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> int | None:
        return self._entries[index] if index < len(self._entries) else None

    def entries(self) -> tuple[int | None, ...]:
        return tuple(self._entries)

    @property
    def blocks(self) -> IntArray:
        """[at least len(self)] a view: -1 for a missing entry and beyond the end."""
        return self._array

    def put(self, index: int, block: int) -> None:
        while len(self._entries) <= index:
            self._entries.append(None)
        if index >= len(self._array):
            longer = np.full(2 * index, -1, dtype=np.int64)
            longer[: len(self._array)] = self._array
            self._array = longer
        self._entries[index] = block
        self._array[index] = block

    def drop(self, index: int) -> None:
        self._entries[index] = None
        self._array[index] = -1
        while self._entries and self._entries[-1] is None:
            self._entries.pop()
