"""The block table of one request: logical index -> physical block."""

from __future__ import annotations


class BlockTable:
    """Entries may be missing in the middle (None): not yet mapped, or given back."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[int | None] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> int | None:
        return self._entries[index] if index < len(self._entries) else None

    def entries(self) -> tuple[int | None, ...]:
        return tuple(self._entries)

    def put(self, index: int, block: int) -> None:
        while len(self._entries) <= index:
            self._entries.append(None)
        self._entries[index] = block

    def drop(self, index: int) -> None:
        self._entries[index] = None
        while self._entries and self._entries[-1] is None:
            self._entries.pop()
