"""Digests of blocks in the device's memory: what changes them without a logged write shows.

Only blocks that are full and in the prefix index are looked at, since nothing may write to them
any more. A digest waits for the device: two steps in flight don't overlap where one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from ..recorder.events import BlockDigested
from .block_pool import BlockPool
from .journal import Journal
from .runner import BlockMemory


class BlockDigests:
    """Takes the digest of a block when it is registered and whenever it is shared, and of one
    registered block more after each step, in the order of their numbers."""

    def __init__(self, journal: Journal, pools: Sequence[BlockPool], memory: BlockMemory) -> None:
        self._journal = journal
        self._pools = pools
        self._memory = memory
        self._swept = (0, -1)
        """KV group and block that the sweep looked at last."""
        for pool in pools:
            pool.digest_by(partial(self._take, pool.group))

    def sweep(self) -> None:
        """The next registered block, after the last one from the first again."""
        registered = [
            (pool.group, block.block_id)
            for pool in self._pools
            for block in pool.blocks
            if block.entry is not None
        ]
        if registered:
            after = (place for place in registered if place > self._swept)
            self._swept = next(after, registered[0])
            self._take(*self._swept, at="sweep")

    def _take(self, group: int, block: int, at: Literal["register", "share", "sweep"]) -> None:
        digest = self._memory.digest(block, group)
        if self._journal.listening:
            self._journal.emit(
                BlockDigested(block=block, digest=digest, at=at, group=group or None)
            )
