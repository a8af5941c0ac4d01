"""What the slots of a simulated pool hold: contents in the place of keys and values.

A *content* is a number that stands for a token after all those before it:

    content(t0 .. ti) = content(t0 .. ti-1) + mixed(ti, i)        in 64 bits, wrapping

so that a step's contents are one cumulated sum, and two texts have one content with a chance of
2**-64 (Zobrist 1970, "A new hashing method with application for game playing").
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from .inputs import BlockCopy, BlockMove, BlockScrub, IntArray

Contents = NDArray[np.uint64]

EMPTY, POISON = np.uint64(0), np.uint64(1)
"""In the place of a content: nothing was written, or NaN was."""
NOBODY = -1
"""In the place of a writer: a pad's slot, or an empty one."""


def mixed(tokens: IntArray, positions: IntArray) -> Contents:
    """[T] what each token adds at its position: splitmix64 (Steele et al. 2014) of the two."""
    z = tokens.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += (positions + 1).view(np.uint64) * np.uint64(0xD1342543DE82EF95)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


class SlotMemory:
    """The slots of one KV group: [num_blocks, block_size] contents, what came before each in its
    own text, and the number of the request that wrote it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        shape = num_blocks, block_size
        self.contents = np.full(shape, EMPTY)
        self.writers = np.full(shape, NOBODY, dtype=np.int64)
        self.run = np.zeros(num_blocks, dtype=np.int64)
        """[num_blocks] how many leading slots of a block hold one text. The last of them tells
        what all of them hold."""
        self.whole = np.full(num_blocks + 1, EMPTY)
        """[num_blocks + 1] the last content of a block that holds one text; of others, and at the
        end for what is no block, EMPTY."""
        self._before = np.full(shape, EMPTY)
        self._host: dict[int, tuple[NDArray[np.generic], ...]] = {}

    def write(self, slots: IntArray, contents: Contents, before: Contents, by: IntArray) -> None:
        """Parallel; a slot of -1 is none."""
        if slots.min(initial=0) < 0:
            kept = slots >= 0
            slots, contents, before, by = slots[kept], contents[kept], before[kept], by[kept]
        self.contents.reshape(-1)[slots] = contents
        self._before.reshape(-1)[slots] = before
        self.writers.reshape(-1)[slots] = by
        blocks, offsets = slots // self.block_size, slots % self.block_size
        if self._go_on(slots, offsets, before, self.run[blocks]):
            self.run[blocks] = offsets + 1
            full = offsets == self.block_size - 1
            self.whole[blocks[full]] = contents[full]
        else:
            self._follow(blocks)

    def move(self, move: BlockMove) -> None:
        match move:
            case BlockScrub(block, how):
                self.contents[block] = POISON if how == "nan" else EMPTY
                self._before[block] = EMPTY
                self.writers[block] = NOBODY
                self._follow(np.array([block]))
            case BlockCopy(source, destination, slots):
                for part in self._parts:
                    part[destination, :slots] = part[source, :slots]
                self._follow(np.array([destination]))

    def digest(self, block: int) -> str:
        return blake2b(self.contents[block].tobytes(), digest_size=16).hexdigest()

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        for block, host_block in zip(blocks, host_blocks, strict=True):
            self._host[host_block] = tuple(part[block].copy() for part in self._parts)

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        for host_block, block in zip(host_blocks, blocks, strict=True):
            for part, kept in zip(self._parts, self._host[host_block], strict=True):
                part[block] = kept
        self._follow(np.array(blocks, dtype=np.int64))

    @property
    def _parts(self) -> tuple[NDArray[np.generic], ...]:
        return self.contents, self._before, self.writers

    def _go_on(self, slots: IntArray, offsets: IntArray, before: Contents, runs: IntArray) -> bool:
        """Whether each is the next token of the text that its block holds, as in decode steps."""
        is_next = self.contents.reshape(-1)[slots - 1] == before
        return bool(((offsets == runs) & (is_next | (offsets == 0))).all())

    def _follow(self, blocks: IntArray) -> None:
        """These blocks have changed: find out how far each holds one text."""
        held = self.contents[blocks]
        breaks = np.ones((len(blocks), self.block_size + 1), dtype=bool)
        breaks[:, 0] = held[:, 0] <= POISON
        np.not_equal(self._before[blocks, 1:], held[:, :-1], out=breaks[:, 1:-1])
        breaks[:, 1:-1] |= held[:, 1:] <= POISON
        run = breaks.argmax(axis=1)
        self.run[blocks] = run
        self.whole[blocks] = np.where(run == self.block_size, held[:, -1], EMPTY)


class SymbolicMemory:
    """Implements `runner.BlockMemory`: one memory a KV group."""

    def __init__(self, num_blocks: int, block_size: int, groups: int) -> None:
        self.groups = tuple(SlotMemory(num_blocks, block_size) for _ in range(groups))

    def move(self, moves: Sequence[BlockMove]) -> None:
        for move in moves:
            self.groups[move.group].move(move)

    def digest(self, block: int, group: int) -> str:
        return self.groups[group].digest(block)

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int], group: int) -> None:
        self.groups[group].store(blocks, host_blocks)

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int], group: int) -> None:
        self.groups[group].load(host_blocks, blocks)
