"""Which requests run in a step, and what they need for it.

Running requests come first, then waiting ones, each in the order of priority and arrival. When
the pool is full the one that comes last is preempted and computed again later (recompute, as in
vLLM).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial

from ..recorder.events import (
    PrefixLookedUp,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    StepScheduled,
)
from .block_pool import BlockPool
from .config import EngineConfig
from .contents import Contents
from .epochs import EpochChange, Epochs
from .granularity import Unit
from .host_tier import HostTier, Loads
from .inputs import BlockMove
from .journal import Journal
from .lookup import Lookup, PrefixLookup
from .publishing import Publisher
from .questions import Admit, Fork, Ready
from .request import FinishReason, Request, Status
from .room import Room
from .rows import Row
from .runner import BlockMemory, KVGroup


class Scheduler:
    """Waiting and running requests. Admission, preemption and finishing happen here only."""

    def __init__(
        self,
        config: EngineConfig,
        pools: Sequence[BlockPool],
        groups: Sequence[KVGroup],
        journal: Journal,
        memory: BlockMemory,
        paragraph_tokens: Set[int] = frozenset(),
    ) -> None:
        self.config = config
        self.pools = pools
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._groups = groups
        self._has_windows = any(group.window is not None for group in groups)
        self._journal = journal
        self.epochs = Epochs(pools, journal)
        self._contents = Contents(config.block_size, config.sharing, self.epochs.of)
        self._unit = Unit(config.granularity, paragraph_tokens)
        self._publisher = Publisher(config, pools, self._contents)
        self.room = Room(config.block_size, pools)
        self.lookup = PrefixLookup(
            config.block_size,
            pools,
            groups,
            journal,
            self._contents.of,
            self._unit,
        )
        self.host = HostTier(config, pools, self.lookup, memory, journal)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=_turn)

    def schedule(self, in_flight: Sequence[Row] = ()) -> tuple[Row, ...]:
        """Decide the step's rows and map their blocks. May be empty when nothing can run.

        `in_flight` are the rows of a step that was sent and hasn't completed.
        """
        rows = self._oversized_prompt() or self._batch(in_flight)
        if rows:
            rows = [self._with_forks(row) for row in rows]
            if self._journal.listening:
                self._journal.emit(_scheduled(rows))
        return tuple(rows)

    def take_moves(self) -> tuple[BlockMove, ...]:
        """What the device must do, in order, before the writes of the step just scheduled."""
        return tuple(move for pool in self.pools for move in pool.take_moves())

    def might_preempt(self) -> bool:
        """Whether the running requests may need more blocks than there are. Never wrongly False."""
        most = self.config.max_num_batched_tokens
        return not self.room.fit_all(
            [
                (r, min(r.prefill_until - r.computed, most) if r.is_prefilling else 1)
                for r in self.running
            ]
        )

    def change_epoch(self, change: EpochChange) -> None:
        """What was computed before is void: requests under way compute their tokens again."""
        self.epochs.change(change)
        concerned = [r for r in self.running if change.concerns(r.prompt.adapter)]
        for request in reversed(concerned):
            self._give_up_blocks(request, f"the {change.what} changed")
        for request in self.waiting:
            if change.concerns(request.prompt.adapter):
                request.contents.clear()

    def publish(self, rows: Iterable[Row]) -> None:
        """After the pass: the blocks that these rows filled, as far as they count as computed."""
        for row in rows:
            self._publisher.computed(row, min(row.seq_len, row.request.computed))

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        release: bool = True,
        message: str | None = None,
    ) -> None:
        """Ends a request; without `release` its blocks stay its own until `release` is called.

        Samples that waited for its prompt go on by themselves.
        """
        if reason in ("eos", "length"):
            self._publisher.ended(request)
        self._finish(request, reason, message)
        for child in _take_children(request):
            self.add(child)
        if release:
            self.release(request)

    def release(self, request: Request) -> None:
        for pool in self.pools:
            pool.release_all(request, lives_on=False)
        request.contents.clear()  # long chains that nobody asks for again

    # Rows of running requests.

    def _batch(self, in_flight: Sequence[Row]) -> list[Row]:
        before = len(self.running)
        rows: list[Row] = []
        budget = self.config.max_num_batched_tokens
        under_way = {row.request: row for row in in_flight}
        for request in sorted(self.running, key=lambda request: request.prompt.priority):
            if self._is_ready(request):
                row = self._running_row(request, budget, under_way)
                if row is not None:
                    rows.append(row)
                    budget -= row.query_len
        if len(self.running) < before:
            return rows
        return rows + self._admissions(rows, budget, in_flight)

    def _is_ready(self, request: Request) -> bool:
        """Not preempted for one before it, and not waiting for host memory."""
        if request.status is Status.LOADING:
            id = self._journal.id("ready", request, 0)
            question = Ready(id, self.host.under_way(request))
            if self._journal.answer(question):
                self._journal.carry_out(question, True)
                request.status = Status.RUNNING
        return request.status is Status.RUNNING

    def _running_row(
        self, request: Request, budget: int, under_way: Mapping[Request, Row]
    ) -> Row | None:
        """None when the step has no token left, the request's last token is already being
        computed, or it had to be preempted."""
        if budget < 1:
            return None
        if self._has_windows:
            self._trim_windows(request, under_way.get(request))
        if request.is_prefilling:
            count = min(request.prefill_until - request.computed, budget)
            return self._prefill_row(request, count) if self._make_room(request, count) else None
        if request.num_sampled + request.pending >= request.prompt.max_new_tokens:
            return None
        if not self._make_room(request, 1):
            return None
        drafts = self._drafts(request, budget - 1) if self.config.speculation else ()
        return Row(request, request.computed, 1 + len(drafts), "decode", drafts)

    def _prefill_row(self, request: Request, count: int) -> Row:
        ends = request.computed + count == request.length
        return Row(request, request.computed, count, "prefill", samples=ends)

    def _drafts(self, request: Request, budget: int) -> tuple[int, ...]:
        """As many as the step, the request's limit and the pool have room for, without
        preempting anybody."""
        left = request.prompt.max_new_tokens - request.num_sampled - 1
        most = min(self.config.speculation, budget, left)
        if most < 1:
            return ()
        drafts = request.drafter.propose(request.tokens, most)
        while drafts and not self.room.fits(request, 1 + len(drafts)):
            drafts = drafts[:-1]
        self._map(request, 1 + len(drafts))
        return drafts

    def _make_room(self, request: Request, count: int) -> bool:
        """Map the blocks of its next tokens; False when it had to be preempted itself."""
        if self.room.is_mapped(request, count):
            return True
        while not self.room.fits(request, count):
            victim = self._last()
            self._give_up_blocks(victim, "the pool is full")
            if victim is request:
                return False
        self._map(request, count)
        return True

    def _give_up_blocks(self, request: Request, reason: str) -> None:
        """Preempt it: it waits, and is computed again."""
        self._preempt(request, reason)
        for pool in self.pools:
            pool.release_all(request, lives_on=True)

    def _map(self, request: Request, count: int) -> None:
        for index, pool in self.room.map(request, count):
            self._publisher.mapped(request, index, pool)

    def _last(self) -> Request:
        """Of the lowest urgency, the one admitted last; not one that host memory is loaded for."""
        running = [request for request in self.running if request.status is Status.RUNNING]
        lowest = max(request.prompt.priority for request in running)
        return next(r for r in reversed(running) if r.prompt.priority == lowest)

    def _trim_windows(self, request: Request, under_way: Row | None) -> None:
        """Give back the blocks that no query sees any more, of this step or one in flight."""
        first_query = under_way.computed if under_way else request.computed
        for group, pool in enumerate(self.pools):
            window = self._groups[group].window
            if window is None:
                continue
            index = max(first_query - window + 1, 0) // self.config.block_size - 1
            while index >= 0 and request.tables[group][index] is not None:
                pool.release(request, index)
                index -= 1

    # Admission.

    def _admissions(self, rows: Sequence[Row], budget: int, in_flight: Sequence[Row]) -> list[Row]:
        admitted: list[Row] = []
        while self.waiting and self._may_admit():
            request = self.waiting[0]
            lookup = self._look_up(request)
            under_way = self._prefix_under_way(request, (*rows, *admitted, *in_flight))
            if under_way > lookup.blocks:
                break
            loads = self.host.loadable(request, lookup.blocks)
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
        if len(self.running) >= self.config.max_num_seqs:
            return False
        return self.config.continuous_batching or all(r.is_prefilling for r in self.running)

    def _oversized_prompt(self) -> list[Row]:
        """Without chunks, the next prompt if it is longer than any step's budget: by itself."""
        if self.config.chunked_prefill or not self.waiting or not self._may_admit():
            return []
        request = self.waiting[0]
        lookup = self._look_up(request)
        if self._left(request, lookup) <= self.config.max_num_batched_tokens:
            return []
        row = self._try_to_admit(request, lookup, None)
        return [row] if row else []

    def _prefix_under_way(self, request: Request, rows: Sequence[Row]) -> int:
        """Leading blocks that a row of this very step, or of one in flight, computes and will
        have published soon. Waiting for them is cheaper than computing them twice (as SGLang
        does)."""
        if not self.config.shares or not self.config.continuous_batching:
            return 0
        usable = (len(request.tokens) - 1) // self.config.block_size
        prefills = [row for row in rows if row.phase == "prefill"]
        return max((self._common_blocks(request, row, usable) for row in prefills), default=0)

    def _common_blocks(self, request: Request, row: Row, usable: int) -> int:
        mine, other = partial(self._contents.of, request), partial(self._contents.of, row.request)
        indices = range(min(usable, row.seq_len // self.config.block_size))
        common = bisect_left(indices, True, key=lambda i: mine(i) != other(i))  # equal up to there
        prompt = row.request.prompt.prompt_tokens
        return self._unit.promised(common, request.tokens, self.config.block_size, prompt)

    def _left(self, request: Request, lookup: Lookup) -> int:
        """Tokens that are left to compute."""
        return len(request.tokens) - lookup.blocks * self.config.block_size

    def _try_to_admit(self, request: Request, lookup: Lookup, budget: int | None) -> Row | None:
        computed = lookup.blocks * self.config.block_size
        count = self._left(request, lookup)
        if self.config.chunked_prefill and budget is not None:
            count = min(count, budget)
        if count < 1 or not self._has_blocks(request, lookup, computed + count):
            return None
        question = Admit(self._journal.next_id("admit", request, 0), count, budget)
        if not self._journal.answer(question):
            return None
        self._admit(request)
        self._journal.carry_out(question, True)
        self._take_hits(request, lookup)
        request.computed = computed
        self._map(request, count)
        return self._prefill_row(request, count)

    def _try_to_load(self, request: Request, lookup: Lookup, loads: Loads, budget: int) -> bool:
        """Admit it with blocks that host memory fills; it computes the rest once they are."""
        computed = loads.blocks * self.config.block_size
        question = Admit(self._journal.next_id("admit", request, 0), 0, budget)
        if not self._has_blocks(request, lookup, computed) or not self._journal.answer(question):
            return False
        self._admit(request)
        request.status = Status.LOADING
        self._journal.carry_out(question, True)
        self._take_hits(request, lookup)
        request.computed = computed
        for pool, wanted in zip(self.pools, loads.wanted, strict=True):
            for one in wanted:
                pool.allocate(request, one.index)
        self.host.start_loads(request, loads)
        return True

    def _has_blocks(self, request: Request, lookup: Lookup, tokens: int) -> bool:
        if self.config.preemption:
            return self.room.has_beside(request, lookup, tokens, ())
        return self.room.has_beside(request, lookup, request.final_length, self.running)

    def _look_up(self, request: Request) -> Lookup:
        if not self.config.shares:
            return Lookup.nothing(len(self.pools))
        return self.lookup.of(request)

    def _take_hits(self, request: Request, lookup: Lookup) -> None:
        if not lookup.asked:
            return
        self._journal.emit(
            PrefixLookedUp(
                request=request.name,
                keys=lookup.keys,
                blocks=tuple(mapped.hit.block for mapped in lookup.found),
                hit_tokens=lookup.blocks * self.config.block_size,
                missed_because=self.lookup.why_missed(request, lookup),
            )
        )
        for pool, mapped_blocks in zip(self.pools, lookup.mapped, strict=True):
            for mapped in mapped_blocks:
                self._journal.carry_out(mapped.question, mapped.hit)
                pool.share(request, mapped.index, mapped.hit, str(mapped.question.id))
        if lookup.missed is not None:
            self._journal.carry_out(lookup.missed, None)

    # Forks.

    def _with_forks(self, row: Row) -> Row:
        """The samples that waited for this prompt take over its blocks, as far as there are
        seats; the others go on as requests like any other."""
        parent = row.request
        if not parent.children or not row.samples:
            return row
        forks: list[Request] = []
        for child in _take_children(parent):
            if self._has_seat(child):
                self._fork_off(child, parent)
                forks.append(child)
            else:
                self.add(child)
        return row._replace(forks=tuple(forks))

    def _has_seat(self, child: Request) -> bool:
        if len(self.running) >= self.config.max_num_seqs:
            return False
        nothing = Lookup.nothing(len(self.pools))
        return self.config.preemption or self._has_blocks(child, nothing, 0)

    def _fork_off(self, child: Request, parent: Request) -> None:
        id = self._journal.next_id("fork", child, 0)
        question = Fork(id, parent.name, len(parent.prompt.prompt_tokens))
        tokens: int = self._journal.decide(question)
        self._fork(child, parent, tokens, str(id))
        for pool in self.pools:
            pool.fork(child, parent, str(id))

    # Transitions: mutate and emit, nothing else does either. (Admission has no event of its own:
    # it is the decision `admit`, and the request's row in `StepScheduled`.)

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        request.admissions += 1
        request.prefill_until = request.length

    def _fork(self, child: Request, parent: Request, tokens: int, decision: str) -> None:
        self.running.append(child)
        child.status = Status.RUNNING
        child.admissions += 1
        child.computed = child.prefill_until = tokens
        self._journal.emit(
            RequestForked(request=child.name, parent=parent.name, tokens=tokens, decision=decision)
        )

    def _preempt(self, request: Request, reason: str) -> None:
        self.running.remove(request)
        self.add(request)
        request.status = Status.PREEMPTED
        request.computed = 0
        self._journal.emit(RequestPreempted(request=request.name, reason=reason))

    def _finish(self, request: Request, reason: FinishReason, message: str | None) -> None:
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        self._journal.emit(RequestFinished(request=request.name, reason=reason, message=message))


def _take_children(parent: Request) -> list[Request]:
    """The samples that have waited for its prompt, but for those that were aborted meanwhile."""
    children = [child for child in parent.children if child.status is not Status.FINISHED]
    parent.children.clear()
    return children


def _turn(request: Request) -> tuple[int, int]:
    """Waiting requests come in this order."""
    return request.prompt.priority, request.arrival


def _scheduled(rows: Sequence[Row]) -> StepScheduled:
    return StepScheduled(
        requests=tuple(row.request.name for row in rows),
        computed=tuple(row.computed for row in rows),
        scheduled=tuple(row.query_len for row in rows),
        phases=tuple(row.phase for row in rows),
    )
