"""Blocks, their counts, and the queue of free ones.

Every change of state is one private method that mutates and emits on adjacent lines; nothing else
mutates. Transitions don't assert: under a planted fault a count may go negative or a block may
stand twice in the queue, and the events must tell the same story as the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from ..recorder.decision import DecisionId
from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    BlockUnregistered,
    Event,
)
from .block import Block
from .block_table import BlockTable
from .content import Content
from .free_queue import LOWEST, FreeQueue, Rank
from .inputs import BlockCopy, BlockMove, BlockScrub, ScrubHow
from .journal import Journal
from .pool_rules import PoolRules
from .prefix_cache import Entry, PrefixCache
from .questions import (
    Acquire,
    Copy,
    Free,
    HandedOut,
    Hit,
    Publish,
    Released,
    Reuse,
    Scrub,
    Taken,
    Trim,
)
from .request import Request


class BlockPool:
    """The `num_blocks` blocks of a KV group; those that nobody holds wait in a queue, longest free
    first.

    A freed block that keeps its index entry stays findable until the queue hands it out again,
    so the queue is also the eviction order (least recently used).
    """

    def __init__(
        self, num_blocks: int, journal: Journal, group: int = 0, rules: PoolRules | None = None
    ) -> None:
        self.group = group
        self.rules = rules or PoolRules()
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.cache = PrefixCache()
        self._free = FreeQueue(
            range(num_blocks), order=self.rules.order, quarantine=self.rules.quarantine
        )
        self._journal = journal
        self._moves: list[BlockMove] = []
        self._freed_cached: dict[int, tuple[Request, int]] = {}
        self._interrupt: Callable[[int], None] = lambda block: None
        self._digest: Callable[[int, Literal["register", "share"]], None] = lambda block, at: None
        self._reset_while_free: set[int] = set()
        """Free blocks whose entry left the index, and that weren't scrubbed when they were freed
        for its sake."""
        self._handed_out_last: tuple[int, HandedOut] | None = None
        """The step in which it was, and to whom."""

    @property
    def num_free(self) -> int:
        """Blocks that may be handed out: neither in quarantine nor held back."""
        return self._free.num_available

    def num_free_without(self, blocks: Collection[int]) -> int:
        """Blocks that may still be handed out once these have left the queue."""
        return self._free.num_available_without(blocks)

    def free_queue(self) -> tuple[int, ...]:
        """All free blocks, longest free first."""
        return tuple(self._free)

    def interrupt_by(self, interrupt: Callable[[int], None]) -> None:
        """What is called before a block is freed that is held back: nothing is freed from under a
        transfer."""
        self._interrupt = interrupt

    def digest_by(self, digest: Callable[[int, Literal["register", "share"]], None]) -> None:
        """What is called once a block has entered the index, or was shared from there."""
        self._digest = digest

    def hold_back(self, block: int) -> None:
        """Don't hand the block out: a transfer still uses it. It stays findable, and keeps its
        place in the queue."""
        self._free.hold_back(block)

    def give_back(self, block: int) -> None:
        """One transfer less uses the block."""
        self._free.give_back(block)

    def take_freed_cached(self) -> dict[int, tuple[Request, int]]:
        """Cached blocks that were freed since the last call: by whom, and from which index of its
        table. Some may have been handed out again."""
        freed, self._freed_cached = self._freed_cached, {}
        return freed

    def take_moves(self) -> tuple[BlockMove, ...]:
        """The scrubs and copies that the device must carry out, in this order, before the writes
        of the step that is built next.

        Only their order makes them right: a block may be copied from, scrubbed and written in one
        step, or scrubbed and copied to.
        """
        moves, self._moves = tuple(self._moves), []
        return moves

    def table(self, request: Request) -> BlockTable:
        return request.tables[self.group]

    def allocate(self, request: Request, index: int, occasion: str = "") -> None:
        """Hand out the next free block, at `index` of the request's table."""
        head = self._free.pick()
        id = self._id("reuse", request, index, occasion)
        question = Reuse(id, head, self.blocks[head].entry, self._handed_out_before())
        taken: Taken = self._journal.decide(question)
        block, decision = self.blocks[taken.block], str(question.id)
        lost_entry = block.block_id in self._reset_while_free
        self._reset_while_free.discard(block.block_id)
        if taken.unregister and block.entry:
            lost_entry = True
            self._unregister(block, block.entry, "evicted", decision)
        if lost_entry and self.rules.scrub_at == "free":
            self._consider_scrub("scrub-evicted", block, request, index, occasion)
        self._allocate(block, request, index, decision)
        self._handed_out_last = self._journal.step, HandedOut(request.name, block.block_id)
        if self.rules.scrub_at == "allocation":
            self._consider_scrub("scrub", block, request, index, occasion)

    def _handed_out_before(self) -> HandedOut | None:
        step, last = self._handed_out_last or (None, None)
        return last if step == self._journal.step else None

    def share(self, request: Request, index: int, hit: Hit, decision: str) -> None:
        """The request becomes a holder of a cached block."""
        self._acquire(self.blocks[hit.block], request, index, hit.key, decision)

    def _acquire(
        self, block: Block, request: Request, index: int, key: str | None, decision: str
    ) -> None:
        question = Acquire(self._id("acquire", request, index), block.block_id, block.ref_count)
        ref_count: int = self._journal.decide(question)
        self._share(block, request, index, ref_count, key, decision)
        if key is not None:
            self._digest(block.block_id, "share")

    def fork(self, request: Request, parent: Request, decision: str) -> None:
        """The request becomes a holder of all that its parent's table lists."""
        for index, block_id in enumerate(self.table(parent).entries()):
            if block_id is not None:
                self._acquire(self.blocks[block_id], request, index, None, decision)

    def copy_on_write(self, request: Request, index: int, offset: int) -> None:
        """Before a write from `offset` on into the request's `index`-th block: if others hold it
        too, the request gets a block of its own, which the device copies the slots before to."""
        block_id = self.table(request)[index]
        if block_id is None or not self.blocks[block_id].is_shared_by(request.name, index):
            return
        shared = self.blocks[block_id]
        question = Copy(self._id("copy", request, index), block_id, shared.ref_count, offset)
        slots: int | None = self._journal.decide(question)
        if slots is None:
            return
        self.allocate(request, index, "copy")
        own = self.table(request)[index]
        assert own is not None
        copy = BlockCopy(block_id, own, slots, self.group)
        self._copy(copy, str(question.id))
        self._let_go(shared, request, index, lives_on=False, occasion="copy")

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

    def publish(self, request: Request, index: int, content: Content, written: int) -> None:
        """Offer a block to the prefix index, `written` of its tokens by completed passes."""
        block_id = self.table(request)[index]
        if block_id is None or self.blocks[block_id].entry:
            return
        question = Publish(self._id("publish", request, index), block_id, content, written)
        key: str | None = self._journal.answer(question)
        if key is not None:
            self._journal.carry_out(question, key)
            entry = Entry(block_id, content, key)
            self._register(self.blocks[block_id], entry, request, str(question.id))
            self._digest(block_id, "register")

    def reset(self, is_void: Callable[[Content], bool], decision: str) -> None:
        """Entries with such contents leave the index; their blocks stay with whom they are."""
        for block in self.blocks:
            if block.entry is not None and is_void(block.entry.content):
                if not block.ref_count:
                    self._reset_while_free.add(block.block_id)
                self._unregister(block, block.entry, "reset", decision)
                self._free.rerank(block.block_id, block.rank)

    def _let_go(
        self, block: Block, request: Request, index: int, *, lives_on: bool, occasion: str = ""
    ) -> None:
        id = self._id("free", request, index, occasion)
        free = Free(id, block.block_id, block.ref_count)
        released: Released = self._journal.decide(free)
        decision = str(free.id)
        if lives_on:
            trim = Trim(self._id("trim", request, index), block.block_id)
            kept: int | None = self._journal.decide(trim)
            self._release(block, request, index, released.ref_count, kept, str(trim.id))
        else:
            self._release(block, request, index, released.ref_count, None, decision)
        if released.freed:
            if self._free.is_held_back(block.block_id):
                self._interrupt(block.block_id)
            self._free_block(block, decision)
            if block.entry is not None:
                self._freed_cached[block.block_id] = request, index
            if self.rules.scrub_at == "free":
                self._consider_scrub("scrub", block, request, index, occasion)

    def _consider_scrub(
        self, kind: str, block: Block, request: Request, index: int, occasion: str
    ) -> None:
        """A cached block that stays as it is is no decision."""
        if self.rules.scrub is None:
            return
        is_cached = block.entry is not None
        id = self._id(kind, request, index, occasion)
        question = Scrub(id, block.block_id, self.rules.scrub, is_cached)
        how: ScrubHow | None = self._journal.answer(question)
        if how is not None or not is_cached:
            self._journal.carry_out(question, how)
        if how is not None:
            self._scrub(block, how, str(id))

    # Transitions: mutate and emit, nothing else does either.

    def _allocate(self, block: Block, request: Request, index: int, decision: str) -> None:
        self._free.remove(block.block_id)
        block.generation += 1
        block.ref_count = 1
        block.holders = [(request.name, index)]
        block.entry, block.rank = None, LOWEST
        self.table(request).put(index, block.block_id)
        if self._journal.listening:
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
        if block.entry is not None:
            block.rank = max(block.rank, _rank_given_by(request))
        if count == 1:
            self._free.remove(block.block_id)
        self.table(request).put(index, block.block_id)
        if self._journal.listening:
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
        if self._journal.listening:
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
        self._free.append(block.block_id, block.rank)
        if self._journal.listening:
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
        block.entry, block.rank = entry, _rank_given_by(request)
        parent, extra_keys = entry.content.parent, entry.content.extra_keys
        if self._journal.listening:
            self._emit(
                BlockRegistered(
                    block=block.block_id,
                    key=entry.key,
                    request=request.name,
                    parent_key=parent.key if parent else None,
                    tokens=entry.content.tokens,
                    extra_keys=[list(key) for key in extra_keys] or None,
                    group=self._named_group,
                    decision=decision,
                )
            )

    def _unregister(
        self, block: Block, entry: Entry, reason: Literal["evicted", "reset"], decision: str
    ) -> None:
        self.cache.remove(entry, reason)
        block.entry, block.rank = None, LOWEST
        if self._journal.listening:
            self._emit(
                BlockUnregistered(
                    block=block.block_id,
                    key=entry.key,
                    reason=reason,
                    group=self._named_group,
                    decision=decision,
                )
            )

    def _copy(self, copy: BlockCopy, decision: str) -> None:
        self._moves.append(copy)
        if self._journal.listening:
            self._emit(
                BlockCopied(
                    source=copy.source,
                    destination=copy.destination,
                    slots=copy.slots,
                    group=self._named_group,
                    decision=decision,
                )
            )

    def _scrub(self, block: Block, how: ScrubHow, decision: str) -> None:
        self._moves.append(BlockScrub(block.block_id, how, self.group))
        if self._journal.listening:
            self._emit(
                BlockScrubbed(
                    block=block.block_id, how=how, group=self._named_group, decision=decision
                )
            )

    def _id(self, kind: str, request: Request, index: int, occasion: str = "") -> DecisionId:
        return self._journal.id(kind, request, index, self.group, occasion)

    @property
    def _named_group(self) -> int | None:
        """As events have it: group 0 goes without saying."""
        return self.group or None

    def _emit(self, event: Event) -> None:
        self._journal.emit(event)


def _rank_given_by(request: Request) -> Rank:
    return Rank(request.prompt.pin, request.prompt.retention)
