"""How waiting requests come to run: what the cache has for them, blocks, seats, forks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from ..recorder.events import PrefixLookedUp
from .block_pool import BlockPool
from .config import EngineConfig
from .contents import Contents
from .granularity import Unit
from .host_tier import HostTier, Loads
from .journal import Journal
from .lookup import Lookup, PrefixLookup
from .publishing import Publisher
from .questions import Admit, Fork
from .queues import Queues
from .request import Request, Status
from .room import Room
from .rows import Row, prefill_row


class Admitter:
    """Takes requests from the head of the waiting ones, and never passes over anybody."""

    def __init__(
        self,
        config: EngineConfig,
        queues: Queues,
        pools: Sequence[BlockPool],
        room: Room,
        lookup: PrefixLookup,
        host: HostTier,
        publisher: Publisher,
        contents: Contents,
        unit: Unit,
        journal: Journal,
    ) -> None:
        self._config = config
        self._queues = queues
        self._pools = pools
        self._room = room
        self._lookup = lookup
        self._host = host
        self._publisher = publisher
        self._contents = contents
        self._unit = unit
        self._journal = journal

    def batch(self, rows: Sequence[Row], budget: int, in_flight: Sequence[Row]) -> list[Row]:
        """Rows of waiting requests, as far as seats, blocks and the step's `budget` of tokens go,
        beside the `rows` of those that run."""
        admitted: list[Row] = []
        while self._queues.waiting and self._may_admit():
            request = self._queues.waiting[0]
            lookup = self._look_up(request)
            under_way = self._prefix_under_way(request, (*rows, *admitted, *in_flight))
            if under_way > lookup.blocks:
                break
            loads = self._host.loadable(request, lookup.blocks)
            if loads.blocks > lookup.blocks:
                if not self._try_to_load(request, lookup, loads, budget):
                    break
                continue
            row = self._try_to_admit(request, lookup, budget)
            if row is None:
                break
            admitted.append(row)
            budget -= row.query_len
        return admitted

    def _may_admit(self) -> bool:
        """A static batch is admitted whole, before any of it decodes."""
        if len(self._queues.running) >= self._config.max_num_seqs:
            return False
        return self._config.continuous_batching or all(
            r.is_prefilling for r in self._queues.running
        )

    def oversized_prompt(self) -> list[Row]:
        """Without chunks, the next prompt if it is longer than any step's budget: by itself."""
        if self._config.chunked_prefill or not self._queues.waiting or not self._may_admit():
            return []
        request = self._queues.waiting[0]
        lookup = self._look_up(request)
        if self._left(request, lookup) <= self._config.max_num_batched_tokens:
            return []
        row = self._try_to_admit(request, lookup, None)
        return [row] if row else []

    def _prefix_under_way(self, request: Request, rows: Sequence[Row]) -> int:
        """Leading blocks that a row of this very step, or of one in flight, computes and will
        have published soon. Waiting for them is cheaper than computing them twice (as SGLang
        does)."""
        if not self._config.shares or not self._config.continuous_batching:
            return 0
        usable = (len(request.tokens) - 1) // self._config.block_size
        prefills = [row for row in rows if row.phase == "prefill"]
        return max((self._common_blocks(request, row, usable) for row in prefills), default=0)

    def _common_blocks(self, request: Request, row: Row, usable: int) -> int:
        mine, other = partial(self._contents.of, request), partial(self._contents.of, row.request)
        indices = range(min(usable, row.seq_len // self._config.block_size))
        common = bisect_left(indices, True, key=lambda i: mine(i) != other(i))  # equal up to there
        prompt = row.request.prompt.prompt_tokens
        return self._unit.promised(common, request.tokens, self._config.block_size, prompt)

    def _left(self, request: Request, lookup: Lookup) -> int:
        """Tokens that are left to compute."""
        return len(request.tokens) - lookup.blocks * self._config.block_size

    def _try_to_admit(self, request: Request, lookup: Lookup, budget: int | None) -> Row | None:
        computed = lookup.blocks * self._config.block_size
        count = self._left(request, lookup)
        if self._config.chunked_prefill and budget is not None:
            count = min(count, budget)
        if count < 1 or not self._has_blocks(request, lookup, computed + count):
            return None
        question = Admit(self._journal.next_id("admit", request, 0), count, budget)
        if not self._journal.answer(question):
            return None
        self._queues.admit(request)
        self._journal.carry_out(question, True)
        self._take_hits(request, lookup)
        request.computed = computed
        self._publisher.map(request, count, self._room)
        return prefill_row(request, count)

    def _try_to_load(self, request: Request, lookup: Lookup, loads: Loads, budget: int) -> bool:
        """Admit it with blocks that host memory fills; it computes the rest once they are."""
        computed = loads.blocks * self._config.block_size
        question = Admit(self._journal.next_id("admit", request, 0), 0, budget)
        counts = [len(wanted) for wanted in loads.wanted]  # what a table kept isn't loaded into
        if not self._has_blocks(request, lookup, computed):
            return False
        if not self._room.has_free_beside(lookup, counts) or not self._journal.answer(question):
            return False
        self._queues.admit(request)
        self._queues.load(request)
        self._journal.carry_out(question, True)
        self._take_hits(request, lookup)
        request.computed = computed
        for pool, wanted in zip(self._pools, loads.wanted, strict=True):
            for one in wanted:
                pool.allocate(request, one.index)
        self._host.start_loads(request, loads)
        return True

    def _has_blocks(self, request: Request, lookup: Lookup, tokens: int) -> bool:
        if self._config.preemption:
            return self._room.has_beside(request, lookup, tokens, ())
        return self._room.has_beside(request, lookup, request.final_length, self._queues.running)

    def _look_up(self, request: Request) -> Lookup:
        if not self._config.shares:
            return Lookup.nothing(len(self._pools))
        return self._lookup.of(request)

    def _take_hits(self, request: Request, lookup: Lookup) -> None:
        if not lookup.asked:
            return
        if self._journal.listening:
            self._journal.emit(
                PrefixLookedUp(
                    request=request.name,
                    keys=lookup.keys,
                    blocks=tuple(mapped.hit.block for mapped in lookup.found),
                    hit_tokens=lookup.blocks * self._config.block_size,
                    missed_because=self._lookup.why_missed(request, lookup),
                )
            )
        for pool, mapped_blocks in zip(self._pools, lookup.mapped, strict=True):
            for mapped in mapped_blocks:
                self._journal.carry_out(mapped.question, mapped.hit)
                pool.share(request, mapped.index, mapped.hit, str(mapped.question.id))
        if lookup.missed is not None:
            self._journal.carry_out(lookup.missed, None)

    def with_forks(self, row: Row) -> Row:
        """The samples that waited for this prompt take over its blocks, as far as there are
        seats; the others go on as requests like any other."""
        parent = row.request
        if not parent.children or not row.samples:
            return row
        forks: list[Request] = []
        for child in take_children(parent):
            if self._has_seat(child):
                self._fork_off(child, parent)
                forks.append(child)
            else:
                self._queues.add(child)
        return row._replace(forks=tuple(forks))

    def _has_seat(self, child: Request) -> bool:
        if len(self._queues.running) >= self._config.max_num_seqs:
            return False
        nothing = Lookup.nothing(len(self._pools))
        return self._config.preemption or self._has_blocks(child, nothing, 0)

    def _fork_off(self, child: Request, parent: Request) -> None:
        id = self._journal.next_id("fork", child, 0)
        question = Fork(id, parent.name, len(parent.prompt.prompt_tokens))
        tokens: int = self._journal.decide(question)
        self._queues.fork(child, parent, tokens, str(id))
        for pool in self._pools:
            pool.fork(child, parent, str(id))


def take_children(parent: Request) -> list[Request]:
    """The samples that have waited for its prompt, but for those that were aborted meanwhile."""
    children = [child for child in parent.children if child.status is not Status.FINISHED]
    parent.children.clear()
    return children
