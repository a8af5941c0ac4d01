"""The blocks of a paged pool, group by group, and the host memory behind them."""

from __future__ import annotations

from collections.abc import Sequence

from .attention.pool import HostBlock, KVPool
from .inputs import BlockCopy, BlockMove, BlockScrub


class PagedMemory:
    """Implements `runner.BlockMemory`. Block numbers count within a KV group, host blocks don't."""

    def __init__(self, pool: KVPool, layers: Sequence[Sequence[int]]) -> None:
        self._pool = pool
        self._layers = layers
        """The layers of each KV group."""
        self._host: dict[int, HostBlock] = {}

    def move(self, moves: Sequence[BlockMove]) -> None:
        for move in moves:
            layers = self._layers[move.group]
            match move:
                case BlockScrub(block, how):
                    self._pool.scrub(layers, [block], how)
                case BlockCopy(source, destination, slots):
                    self._pool.copy(layers, [(source, destination, slots)])

    def digest(self, block: int, group: int) -> str:
        return self._pool.digest(self._layers[group], block)

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int], group: int) -> None:
        taken = self._pool.take(self._layers[group], blocks)
        self._host.update(zip(host_blocks, taken, strict=True))

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int], group: int) -> None:
        kept = [self._host[number] for number in host_blocks]
        self._pool.put(self._layers[group], blocks, kept)
