"""The queue of free blocks: in the order in which they were freed, whatever is taken out of it.

      longest free                                        freed last
      ┌────┬────┬────┬────┬────┬────┬────┬────┬────┬────┬────┬────┐
      │  4 │  9 │ 2* │  7 │ 1+ │  3 │ 11 │  8 │  0 │  5 │  6 │ 10 │
      └────┴────┴────┴────┴────┴────┴────┴────┴────┴────┴────┴────┘
       first-freed takes 4               quarantine=3 keeps └─────┘
       last-freed takes 10               (* retained, + pinned: only when no others are left)

Everything the pool does in a step is O(1) here. With a quarantine a pick looks past N blocks, and
only where blocks of several ranks wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Literal, NamedTuple

Order = Literal["first-freed", "last-freed"]


class Rank(NamedTuple):
    """What a cached block is worth: of the free blocks the lowest rank is handed out first."""

    is_pinned: bool = False
    retention: int = 0


LOWEST = Rank()
"""Of a block that carries nothing worth keeping, or nothing that anybody asked to keep."""


class FreeQueue:
    """Blocks that nobody holds. Under a planted fault a block may stand in it twice, or be held.

    A block that is held back (a transfer still reads it) keeps its place and isn't handed out.
    """

    def __init__(
        self, blocks: Iterable[int] = (), *, order: Order = "first-freed", quarantine: int = 0
    ) -> None:
        self._order: Order = order
        self._quarantine = quarantine
        self._next_place = 0
        self._places: dict[int, list[int]] = {}
        """Block -> its places, in ascending order. One place each, but for planted faults."""
        self._waiting: dict[Rank, OrderedDict[int, int]] = {LOWEST: OrderedDict()}
        """Rank -> {place: block}, in the order of places."""
        self._ranks: dict[int, Rank] = {}
        """Place -> rank, where it isn't the lowest."""
        self._held_back: dict[int, int] = {}
        """Block -> by how many."""
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __contains__(self, block: int) -> bool:
        return block in self._places

    def __iter__(self) -> Iterator[int]:
        """Longest free first."""
        if len(self._waiting) == 1:
            return iter(tuple(self._waiting[LOWEST].values()))
        places = sorted(place for waiting in self._waiting.values() for place in waiting.items())
        return iter(tuple(block for _, block in places))

    @property
    def num_available(self) -> int:
        """How many may be handed out, one after the other."""
        return self.num_available_without(())

    def num_available_without(self, leaving: Collection[int]) -> int:
        """How many may still be handed out once these blocks have left the queue."""
        taken = 0
        if leaving or self._held_back:
            unavailable = self._held_back.keys() | leaving
            taken = sum(len(self._places.get(block, ())) for block in unavailable)
        return max(0, len(self) - taken - self._quarantine)

    def append(self, block: int, rank: Rank = LOWEST) -> None:
        """The block goes to the tail."""
        place = self._next_place
        self._next_place += 1
        self._places.setdefault(block, []).append(place)
        if rank != LOWEST:
            self._ranks[place] = rank
        if rank not in self._waiting:
            self._waiting[rank] = OrderedDict()
        self._waiting[rank][place] = block

    def remove(self, block: int) -> None:
        """The block leaves the queue where it stands first; nothing if it isn't there."""
        places = self._places.get(block)
        if places is None:
            return
        place = places.pop(0)
        if not places:
            del self._places[block]
        rank = self._ranks.pop(place, LOWEST)
        del self._waiting[rank][place]
        if rank != LOWEST and not self._waiting[rank]:
            del self._waiting[rank]

    def rerank(self, block: int, rank: Rank) -> None:
        """What the block is worth has changed; its place has not."""
        for place in self._places.get(block, ()):
            before = self._ranks.pop(place, LOWEST)
            del self._waiting[before][place]
            if before != LOWEST and not self._waiting[before]:
                del self._waiting[before]
            places = (*self._waiting.get(rank, {}).items(), (place, block))
            self._waiting[rank] = OrderedDict(sorted(places))
            if rank != LOWEST:
                self._ranks[place] = rank

    def hold_back(self, block: int) -> None:
        """The block isn't handed out until it is given back as often as it was held back."""
        self._held_back[block] = self._held_back.get(block, 0) + 1

    def is_held_back(self, block: int) -> bool:
        return block in self._held_back

    def give_back(self, block: int) -> None:
        """Raises KeyError for a block that isn't held back."""
        self._held_back[block] -= 1
        if not self._held_back[block]:
            del self._held_back[block]

    def pick(self) -> int:
        """The block to hand out next. Raises IndexError when none may be."""
        for rank in self._waiting if len(self._waiting) == 1 else sorted(self._waiting):
            for block in self._candidates(rank):
                if block not in self._held_back:
                    return block
        raise IndexError("no free block may be handed out")

    def _candidates(self, rank: Rank) -> Iterator[int]:
        waiting = self._waiting[rank]
        if self._order == "last-freed":
            return reversed(waiting.values())
        if not self._quarantine:
            return iter(waiting.values())
        first_kept = self._first_in_quarantine()
        return (block for place, block in waiting.items() if place < first_kept)

    def _first_in_quarantine(self) -> int:
        """The place from which on none is handed out. What is held back doesn't count."""
        if len(self._waiting) == 1 and self.num_available:
            return self._next_place  # the first that isn't held back is not in quarantine
        last_first = (reversed(waiting.items()) for waiting in self._waiting.values())
        places = (
            place
            for place, block in merge(*last_first, reverse=True)
            if block not in self._held_back
        )
        return next(islice(places, self._quarantine - 1, None), 0)
