"""Running counts of one KV group's pool: what is held, what of it is written, what is shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .kv_footprint import GroupFootprint
from .state import Block


class Sample(NamedTuple):
    """What one step held. Sizes are in bytes, or in slots where bytes can't be told."""

    held_blocks: int
    held: int
    cached_blocks: int
    cached: int
    """In blocks that nobody holds and that keep a key."""
    taken_blocks: int
    taken: int
    """Held or cached: not free."""
    spare_blocks: int
    spare: int
    """In holders beyond the first of each block: what sharing saved."""
    unwritten_slots: int
    unwritten: int
    """In slots that are held and not written: internal fragmentation."""
    alone: int
    """What is written, once for each holder, and no more than a window's worth: the tokens that
    each request would have to keep without sharing."""
    reserved: int
    """For each resident request, its longest."""

    def __add__(self, other: object) -> Sample:
        if not isinstance(other, Sample):
            return NotImplemented
        return Sample(*map(sum, zip(self, other, strict=True)))


NOTHING = Sample(*[0] * len(Sample._fields))


@dataclass(slots=True)
class PoolTally:
    """Told of every change of a block, it keeps the sums. `token`: the size of one slot."""

    footprint: GroupFootprint
    block_size: int | None
    token: int
    sentinels: frozenset[int] = frozenset()
    held: int = 0
    cached: int = 0
    spare: int = 0
    written: int = 0
    """Written slots of held blocks."""
    unshared: int = 0
    """The same, each counted once a holder."""
    reserved: int = 0
    """In tokens."""
    masks: dict[int, int] = field(default_factory=dict)
    """Block -> bits of the slots written in its present generation."""
    handed_out: set[int] = field(default_factory=set)
    """Blocks that somebody has ever held."""

    def moved(self, number: int, before: Block, after: Block) -> None:
        """Count a block as it is now instead of as it was."""
        if number in self.sentinels:
            return
        self._count(number, before, -1)
        if after.generation != before.generation:
            self.masks.pop(number, None)
        self._count(number, after, 1)
        if after.holders:
            self.handed_out.add(number)

    def wrote(self, number: int, mask: int, holders: int) -> None:
        """Slots of a block were written: bit i for its slot i."""
        self._set_mask(number, self.masks.get(number, 0) | mask, holders)

    def scrubbed(self, number: int, holders: int) -> None:
        self._set_mask(number, 0, holders)

    def unwrote_all(self) -> None:
        self.masks.clear()
        self.written = self.unshared = 0

    def reserve(self, tokens: int) -> None:
        """A request became resident that may come to that many tokens."""
        self.reserved += self.footprint.kept(tokens)

    def give_back(self, tokens: int) -> None:
        self.reserved -= self.footprint.kept(tokens)

    def sample(self, residents: int) -> Sample:
        """The counts as they are now; `residents`: how many requests hold blocks."""
        size = self.block_size or 1
        block, unwritten = size * self.token, self.held * size - self.written
        window = self.footprint.window
        alone = self.unshared if window is None else min(self.unshared, window * residents)
        return Sample(
            held_blocks=self.held,
            held=self.held * block,
            cached_blocks=self.cached,
            cached=self.cached * block,
            taken_blocks=self.held + self.cached,
            taken=(self.held + self.cached) * block,
            spare_blocks=self.spare,
            spare=self.spare * block,
            unwritten_slots=unwritten,
            unwritten=unwritten * self.token,
            alone=alone * self.token,
            reserved=self.reserved * self.token,
        )

    def _count(self, number: int, block: Block, sign: int) -> None:
        holders = len(block.holders)
        if not holders:
            self.cached += sign if block.keys else 0
            return
        slots = self.masks.get(number, 0).bit_count()
        self.held += sign
        self.spare += sign * (holders - 1)
        self.written += sign * slots
        self.unshared += sign * slots * holders

    def _set_mask(self, number: int, mask: int, holders: int) -> None:
        more = mask.bit_count() - self.masks.get(number, 0).bit_count()
        self.masks[number] = mask
        if holders and number not in self.sentinels:
            self.written += more
            self.unshared += more * holders
