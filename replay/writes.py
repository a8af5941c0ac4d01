"""Who wrote what into the cache: an append-only log that slots point into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..recorder.events import Scalar


class Epoch(NamedTuple):
    """Under which weights, adapter and pool a key and value were computed."""

    weights: Scalar | None = None
    adapter: Scalar | None = None
    pool: Scalar | None = None


class Write(NamedTuple):
    """One slot's content: whose token it is, and the event that put it there.

    A copied slot keeps its first writer (`request`, `revision`, `position`, `token`), a loaded one
    counts as the storing request's; `seq`, `step` and `kind` are the copy's or load's own.
    """

    request: str | None
    """None for a pad or dummy row."""
    revision: int
    """How often the writer's tokens had been revised when it wrote."""
    position: int
    token: int | None
    slot: int
    seq: int
    step: int
    kind: str
    generation: int | None
    """The block's generation when written; None for a copy of what nobody wrote in its own."""
    epoch: Epoch


class WriteLog:
    """Append-only, and shared by all copies of a state.

    A copy taken at a keyframe and advanced again over the same events finds its writes already
    there; only a copy advanced over other events pays for a log of its own.
    """

    __slots__ = ("_entries", "_length")

    def __init__(self) -> None:
        self._entries: list[Write] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Write:
        return self._entries[index]

    def __iter__(self) -> Iterator[Write]:
        return iter(self._entries[: self._length])

    def append(self, write: Write) -> int:
        """The index of the write."""
        if self._length < len(self._entries) and self._entries[self._length] != write:
            self._entries = self._entries[: self._length]
        if self._length == len(self._entries):
            self._entries.append(write)
        self._length += 1
        return self._length - 1

    def copy(self) -> WriteLog:
        twin = WriteLog()
        twin._entries, twin._length = self._entries, self._length
        return twin
