"""What enters the prefix index, and when: blocks, and the ends of larger units."""

from __future__ import annotations

from collections.abc import Sequence

from .block_pool import BlockPool
from .config import EngineConfig
from .contents import Contents
from .request import Request
from .room import Room
from .rows import Row


class Publisher:
    """Offers blocks to the prefix index of every KV group; does nothing where nobody shares."""

    def __init__(
        self, config: EngineConfig, pools: Sequence[BlockPool], contents: Contents
    ) -> None:
        self._config = config
        self._pools = pools
        self._contents = contents

    def map(self, request: Request, count: int, room: Room) -> None:
        """Map the blocks of its next `count` tokens, and offer those that were allocated."""
        for index, pool in room.map(request, count):
            self.mapped(request, index, pool)

    def mapped(self, request: Request, index: int, pool: BlockPool) -> None:
        """A block was allocated whose tokens may all be known: it might be published at once.
        Rightly it is not, since nothing is written."""
        size = self._config.block_size
        if self._config.shares and (index + 1) * size <= len(request.tokens):
            pool.publish(request, index, self._contents.of(request, index), written=0)

    def computed(self, row: Row, tokens: int) -> None:
        """A pass completed: the blocks that the row filled, up to its request's first `tokens`."""
        if not self._config.shares:
            return
        size, request = self._config.block_size, row.request
        if row.phase == "decode" and tokens // size == row.computed // size:
            return  # inside a block: most decode steps
        for index in range(row.computed // size, tokens // size):
            content = self._contents.of(request, index)
            for pool in self._pools:
                pool.publish(request, index, content, written=size)
        prompt = len(request.prompt.prompt_tokens)
        if self._config.granularity == "prompt" and row.phase == "prefill" and tokens >= prompt:
            self._mark_end(request, prompt)

    def ended(self, request: Request) -> None:
        """The request came to its own end: its sequence is whole."""
        if self._config.shares and self._config.granularity == "sequence":
            self._mark_end(request, len(request.tokens))

    def _mark_end(self, request: Request, tokens: int) -> None:
        """A unit of that many tokens is shared as far as its blocks are published: the KV of a
        request's last token never is."""
        size = self._config.block_size
        blocks = min(tokens, len(request.tokens) - 1) // size
        if blocks:
            last, rest = self._contents.of(request, blocks - 1), request.tokens[blocks * size :]
            self._pools[0].cache.mark_end(last, rest[: tokens - blocks * size])
