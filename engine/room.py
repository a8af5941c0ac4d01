"""Which blocks a request's next tokens need, and whether the pools have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .block_pool import BlockPool
from .lookup import Lookup
from .request import Request


class Room:
    """Asks the pools of all KV groups at once; maps what it was asked for."""

    def __init__(self, block_size: int, pools: Sequence[BlockPool]) -> None:
        self._block_size = block_size
        self._pools = pools

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def is_mapped(self, request: Request, count: int) -> bool:
        """Whether it has blocks of its own for its next `count` tokens already: most decode steps
        stay inside a block."""
        first, last = request.computed, request.computed + count - 1
        if first // self._block_size != last // self._block_size:
            return False
        for group, pool in enumerate(self._pools):
            block = request.tables[group][last // self._block_size]
            if block is None or pool.blocks[block].ref_count > 1:
                return False
        return True

    def fits(self, request: Request, count: int) -> bool:
        """Whether the pools have the blocks for its next `count` tokens."""
        return self.fit_all([(request, count)])

    def fit_all(self, wanted: Sequence[tuple[Request, int]]) -> bool:
        """Whether they have the blocks for the next tokens of all of these together."""
        return all(
            sum(len(self.unmapped(request, count, group)) for request, count in wanted)
            <= pool.num_free
            for group, pool in enumerate(self._pools)
        )

    def unmapped(self, request: Request, count: int, group: int) -> list[int]:
        """Indices that its next `count` tokens need a block of their own for."""
        table, blocks = request.tables[group], self._pools[group].blocks
        first, end = request.computed // self._block_size, request.computed + count
        held = ((index, table[index]) for index in range(first, self.blocks_for(end)))
        return [
            index
            for index, block in held
            if block is None or blocks[block].is_shared_by(request.name, index)
        ]

    def map(self, request: Request, count: int) -> list[tuple[int, BlockPool]]:
        """Blocks for its next `count` tokens: allocated where it has none, copied where others
        hold it too. Returns what was allocated."""
        allocated: list[tuple[int, BlockPool]] = []
        for group, pool in enumerate(self._pools):
            for index in self.unmapped(request, count, group):
                if request.tables[group][index] is None:
                    pool.allocate(request, index)
                    allocated.append((index, pool))
                else:
                    offset = request.computed - index * self._block_size
                    pool.copy_on_write(request, index, max(offset, 0))
        return allocated

    def has_beside(
        self, request: Request, lookup: Lookup, tokens: int, running: Iterable[Request]
    ) -> bool:
        """Whether a request that isn't admitted yet could have blocks for its first `tokens`
        tokens, beside all that `running` ones may need to their end."""
        running = tuple(running)
        return all(
            len(self._missing(request, lookup, tokens, group)) + self._reserved(running, group)
            <= self._free_beside(lookup, group)
            for group in range(len(self._pools))
        )

    def has_free_beside(self, lookup: Lookup, counts: Sequence[int]) -> bool:
        """Whether each pool has that many blocks beside the hits."""
        return all(count <= self._free_beside(lookup, group) for group, count in enumerate(counts))

    def _missing(self, request: Request, lookup: Lookup, tokens: int, group: int) -> list[int]:
        table = request.tables[group]
        indices = range(lookup.blocks, self.blocks_for(tokens))
        return [index for index in indices if table[index] is None]

    def _reserved(self, running: Iterable[Request], group: int) -> int:
        return sum(len(self.unmapped(r, r.final_length - r.computed, group)) for r in running)

    def _free_beside(self, lookup: Lookup, group: int) -> int:
        """Free blocks that the hits themselves don't take out of the queue."""
        hits = {mapped.hit.block for mapped in lookup.mapped[group]}
        return self._pools[group].num_free_without(hits)
