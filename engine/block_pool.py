"""Blocks, their counts, and the queue of free ones.

Every change of state is one private method that mutates and emits on adjacent lines; nothing else
mutates. Transitions don't assert: under a planted fault a count may go negative or a block may
stand twice in the queue, and the events must tell the same story as the state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..recorder.decision import DecisionId
from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockShared,
    BlockUnregistered,
    Event,
)
from .block_table import BlockTable
from .decisions import Acquire, Copy, Free, Hit, Publish, Released, Reuse, Taken, Trim
from .inputs import BlockCopy
from .journal import Journal
from .prefix_cache import Content, Entry, PrefixCache
from .request import Request


@dataclass(slots=True)
class Block:
    """A physical block. `generation` counts how often it was handed out."""

    block_id: int
    generation: int = 0
    ref_count: int = 0
    holders: list[tuple[str, int]] = field(default_factory=list)
    """(request, logical index) of each holder."""
    entry: Entry | None = None
    """Its entry in the prefix index."""


class BlockPool:
    """The `num_blocks` blocks of a KV group; those that nobody holds wait in a queue, longest free
    first.

    A freed block that keeps its index entry stays findable until the queue hands it out again,
    so the queue is also the eviction order (least recently used).
    """

    def __init__(self, num_blocks: int, journal: Journal, group: int = 0) -> None:
        self.group = group
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.cache = PrefixCache()
        self._free: deque[int] = deque(range(num_blocks))
        self._journal = journal

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_queue(self) -> tuple[int, ...]:
        return tuple(self._free)

    def table(self, request: Request) -> BlockTable:
        return request.tables[self.group]

    def allocate(self, request: Request, index: int) -> None:
        """Hand out the block that has been free longest, at `index` of the request's table."""
        head = self._free[0]
        question = Reuse(self._id("reuse", request, index), head, self.blocks[head].entry)
        taken: Taken = self._journal.decide(question)
        block, decision = self.blocks[taken.block], str(question.id)
        if taken.unregister and block.entry:
            self._unregister(block, block.entry, decision)
        self._allocate(block, request, index, decision)

    def share(self, request: Request, index: int, hit: Hit, decision: str) -> None:
        """The request becomes a holder of a cached block."""
        self._acquire(self.blocks[hit.block], request, index, hit.key, decision)

    def _acquire(
        self, block: Block, request: Request, index: int, key: str | None, decision: str
    ) -> None:
        question = Acquire(self._id("acquire", request, index), block.block_id, block.ref_count)
        ref_count: int = self._journal.decide(question)
        self._share(block, request, index, ref_count, key, decision)

    def fork(self, request: Request, parent: Request, decision: str) -> None:
        """The request becomes a holder of all that its parent's table lists."""
        for index, block_id in enumerate(self.table(parent).entries()):
            if block_id is not None:
                self._acquire(self.blocks[block_id], request, index, None, decision)

    def copy_on_write(self, request: Request, index: int, offset: int) -> BlockCopy | None:
        """Before a write from `offset` on into the request's `index`-th block: if others hold it
        too, the request gets a block of its own, which the device copies the slots before to."""
        block_id = self.table(request)[index]
        if block_id is None or self.blocks[block_id].ref_count < 2:
            return None
        shared = self.blocks[block_id]
        question = Copy(self._id("copy", request, index), block_id, shared.ref_count, offset)
        slots: int | None = self._journal.decide(question)
        if slots is None:
            return None
        self.allocate(request, index)
        own = self.table(request)[index]
        assert own is not None
        copy = BlockCopy(block_id, own, slots, self.group)
        self._copy(copy, str(question.id))
        self._let_go(shared, request, index, lives_on=False)
        return copy

    def release(self, request: Request, index: int) -> None:
        """A request that lives on gives up one block, and its table entry."""
        block_id = self.table(request)[index]
        if block_id is not None and (request.name, index) in self.blocks[block_id].holders:
            self._let_go(self.blocks[block_id], request, index, lives_on=True)

    def release_all(self, request: Request, *, lives_on: bool) -> None:
        """The request gives up its blocks, last one first, so that tails are evicted before heads.

        A request that lives on (preempted) also gives up the entries of its table.
        """
        for index in reversed(range(len(self.table(request)))):
            block_id = self.table(request)[index]
            if block_id is not None and (request.name, index) in self.blocks[block_id].holders:
                self._let_go(self.blocks[block_id], request, index, lives_on=lives_on)

    def publish(self, request: Request, index: int, content: Content) -> None:
        """Enter a fully written block into the prefix index."""
        block_id = self.table(request)[index]
        if block_id is None or self.blocks[block_id].entry:
            return
        question = Publish(self._id("publish", request, index), block_id, content)
        key: str | None = self._journal.decide(question)
        if key is not None:
            entry = Entry(block_id, content, key)
            self._register(self.blocks[block_id], entry, request, str(question.id))

    def _let_go(self, block: Block, request: Request, index: int, *, lives_on: bool) -> None:
        free = Free(self._id("free", request, index), block.block_id, block.ref_count)
        released: Released = self._journal.decide(free)
        decision = str(free.id)
        if lives_on:
            trim = Trim(self._id("trim", request, index), block.block_id)
            kept: int | None = self._journal.decide(trim)
            self._release(block, request, index, released.ref_count, kept, str(trim.id))
        else:
            self._release(block, request, index, released.ref_count, None, decision)
        if released.freed:
            self._free_block(block, decision)

    # Transitions: mutate and emit, nothing else does either.

    def _allocate(self, block: Block, request: Request, index: int, decision: str) -> None:
        self._leave_queue(block)
        block.generation += 1
        block.ref_count = 1
        block.holders = [(request.name, index)]
        block.entry = None
        self.table(request).put(index, block.block_id)
        self._emit(
            BlockAllocated(
                block=block.block_id,
                request=request.name,
                index=index,
                group=self._named_group,
                decision=decision,
            )
        )

    def _share(
        self, block: Block, request: Request, index: int, count: int, key: str | None, decision: str
    ) -> None:
        block.ref_count = count
        block.holders.append((request.name, index))
        if count == 1:
            self._leave_queue(block)
        self.table(request).put(index, block.block_id)
        self._emit(
            BlockShared(
                block=block.block_id,
                request=request.name,
                index=index,
                ref_count=count,
                key=key,
                group=self._named_group,
                decision=decision,
            )
        )

    def _release(
        self,
        block: Block,
        request: Request,
        index: int,
        count: int,
        kept: int | None,
        decision: str,
    ) -> None:
        block.ref_count = count
        block.holders.remove((request.name, index))
        if kept is not None:
            self.table(request).put(index, kept)
        elif self.table(request)[index] == block.block_id:  # not so after a copy took its place
            self.table(request).drop(index)
        self._emit(
            BlockReleased(
                block=block.block_id,
                request=request.name,
                index=index,
                ref_count=count,
                group=self._named_group,
                decision=decision,
            )
        )

    def _free_block(self, block: Block, decision: str) -> None:
        self._free.append(block.block_id)
        self._emit(
            BlockFreed(
                block=block.block_id,
                cached=block.entry is not None,
                group=self._named_group,
                decision=decision,
            )
        )

    def _register(self, block: Block, entry: Entry, request: Request, decision: str) -> None:
        self.cache.add(entry)
        block.entry = entry
        parent = entry.content.parent
        self._emit(
            BlockRegistered(
                block=block.block_id,
                key=entry.key,
                request=request.name,
                parent_key=parent.key if parent else None,
                tokens=entry.content.tokens,
                group=self._named_group,
                decision=decision,
            )
        )

    def _unregister(self, block: Block, entry: Entry, decision: str) -> None:
        self.cache.remove(entry)
        block.entry = None
        self._emit(
            BlockUnregistered(
                block=block.block_id,
                key=entry.key,
                reason="evicted",
                group=self._named_group,
                decision=decision,
            )
        )

    def _copy(self, copy: BlockCopy, decision: str) -> None:
        """The device carries it out before the step attends."""
        self._emit(
            BlockCopied(
                source=copy.source,
                destination=copy.destination,
                slots=copy.slots,
                group=self._named_group,
                decision=decision,
            )
        )

    def _leave_queue(self, block: Block) -> None:
        if block.block_id in self._free:
            self._free.remove(block.block_id)

    def _id(self, kind: str, request: Request, index: int) -> DecisionId:
        return self._journal.id(kind, request, index, self.group)

    @property
    def _named_group(self) -> int | None:
        """As events have it: group 0 goes without saying."""
        return self.group or None

    def _emit(self, event: Event) -> None:
        self._journal.emit(event)
