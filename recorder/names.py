"""Names in arrays as numbers: request ids are long, and each step lists them several times.

A trace has a table of them (`names`: id from 1 on, name); an id is committed together with the
first step that uses it. 0 stands for a pad. A name may have several ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgpack

from .arrays import WrongType, pack_ints, unpack_ints, value_packer

PAD = 0

_MOST_NAMES = 20_000
"""So many names are remembered at once; a server sees new ones for ever."""


class PackedNames(NamedTuple):
    """`names` is what a digest covers, `ids` what is stored."""

    ids: msgpack.ExtType
    names: bytes


class NameTable:
    """Gives ids to names, for a writer."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._packed: dict[tuple[str | None, ...], PackedNames] = {}
        self._distinct: dict[tuple[str | None, ...], tuple[int, ...]] = {}
        self._new: list[tuple[int, str]] = []
        self._next = 1
        self._pack = value_packer()

    def pack(self, names: Iterable[str | None]) -> PackedNames:
        """Raises TypeError for what is neither text nor None."""
        given = names if type(names) is tuple else tuple(names)
        packed = self._packed.get(given)
        if packed is None:
            ids = [PAD if name is None else self._id(name) for name in given]
            packed = PackedNames(pack_ints(ids), self._pack(given))
            self._packed[given] = packed
        return packed

    @property
    def next_id(self) -> int:
        return self._next

    def ids_of(self, names: Sequence[str | None]) -> tuple[int, ...]:
        """The ids of the names in an array, each once."""
        given = names if type(names) is tuple else tuple(names)
        distinct = self._distinct.get(given)
        if distinct is None:
            distinct = tuple({self._id(name) for name in given if name is not None})
            self._distinct[given] = distinct
        return distinct

    def take_new(self) -> list[tuple[int, str]]:
        """Rows of the table `names` that were not yet taken."""
        new, self._new = self._new, []
        return new

    def tidy(self) -> None:
        """Between steps: what the last ones had is likely to come again, the rest is let go."""
        if len(self._packed) > 64:
            self._packed.clear()
            self._distinct.clear()
        if len(self._ids) > _MOST_NAMES:
            self.forget()

    def forget(self) -> None:
        """What comes from now on depends on no row of the table that was taken before."""
        self._ids.clear()
        self._packed.clear()
        self._distinct.clear()

    def _id(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            if not isinstance(name, str):
                raise TypeError(f"a value of type {type(name).__name__} is no name")
            name.encode()  # half a surrogate pair can't be stored
            known = self._ids[name] = self._next
            self._new.append((known, name))
            self._next += 1
        return known


def unpack_names(value: Any, name_of: Callable[[int], str | None]) -> tuple[str | None, ...]:
    """`name_of` gives None for an id that the trace doesn't have."""
    names: list[str | None] = []
    for number in unpack_ints(value):
        name = None if number == PAD else name_of(number)
        if name is None and number != PAD:
            raise WrongType(f"made of names that the trace has: number {number} is lost")
        names.append(name)
    return tuple(names)
