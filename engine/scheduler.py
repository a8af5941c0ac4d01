"""Which requests run in a step, and what they need for it.

Running requests come first, then waiting ones, each in the order of priority and arrival. When
the pool is full the one that comes last is preempted and computed again later (recompute, as in
vLLM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from ..recorder.events import StepScheduled
from .admitter import Admitter, take_children
from .block_pool import BlockPool
from .config import EngineConfig
from .contents import Contents
from .epochs import EpochChange, Epochs
from .geometry import first_seen_block
from .granularity import Unit
from .host_tier import HostTier
from .inputs import BlockMove
from .journal import Journal
from .lookup import PrefixLookup
from .publishing import Publisher
from .questions import Ready
from .queues import Queues
from .request import FinishReason, Request, Status
from .room import Room
from .rows import Row, prefill_row
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
        self._queues = Queues(journal)
        self._is_short = False
        """Whether a running request lacked blocks in this step: then nobody is admitted."""
        self._groups = groups
        self._has_windows = any(group.window is not None for group in groups)
        self._journal = journal
        self.epochs = Epochs(pools, journal)
        self._contents = Contents(config.block_size, config.sharing, self.epochs.of)
        unit = Unit(config.granularity, paragraph_tokens)
        self._publisher = Publisher(config, pools, self._contents)
        self.room = Room(config.block_size, pools)
        self.lookup = PrefixLookup(
            config.block_size,
            pools,
            groups,
            journal,
            self._contents.of,
            unit,
        )
        self.host = HostTier(config, pools, self.lookup, memory, journal)
        self._admitter = Admitter(
            config,
            self._queues,
            pools,
            self.room,
            self.lookup,
            self.host,
            self._publisher,
            self._contents,
            unit,
            journal,
        )

    @property
    def waiting(self) -> list[Request]:
        return self._queues.waiting

    @property
    def running(self) -> list[Request]:
        return self._queues.running

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self._queues.add(request)

    def schedule(self, in_flight: Sequence[Row] = ()) -> tuple[Row, ...]:
        """Decide the step's rows and map their blocks. May be empty when nothing can run.

        `in_flight` are the rows of a step that was sent and hasn't completed.
        """
        rows = self._admitter.oversized_prompt() or self._batch(in_flight)
        if rows:
            rows = [self._admitter.with_forks(row) for row in rows]
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
        self._queues.finish(request, reason, message)
        for child in take_children(request):
            self.add(child)
        if release:
            self.release(request)

    def release(self, request: Request) -> None:
        for pool in self.pools:
            pool.release_all(request, lives_on=False)
        request.contents.clear()  # long chains that nobody asks for again

    # Rows of running requests.

    def _batch(self, in_flight: Sequence[Row]) -> list[Row]:
        rows: list[Row] = []
        self._is_short = False
        budget = self.config.max_num_batched_tokens
        under_way = {row.request: row for row in in_flight}
        for request in sorted(self.running, key=lambda request: request.prompt.priority):
            if self._is_ready(request):
                row = self._running_row(request, budget, under_way)
                if row is not None:
                    rows.append(row)
                    budget -= row.query_len
        if self._is_short:
            return rows
        return rows + self._admitter.batch(rows, budget, in_flight)

    def _is_ready(self, request: Request) -> bool:
        """Not preempted for one before it, and not waiting for host memory."""
        if request.status is Status.LOADING:
            id = self._journal.id("ready", request, 0)
            question = Ready(id, self.host.under_way(request))
            if self._journal.answer(question):
                self._journal.carry_out(question, True)
                self._queues.ready(request)
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
            return prefill_row(request, count) if self._make_room(request, count) else None
        if request.num_sampled + request.pending >= request.prompt.max_new_tokens:
            return None
        if not self._make_room(request, 1):
            return None
        drafts = self._drafts(request, budget - 1) if self.config.speculation else ()
        return Row(request, request.computed, 1 + len(drafts), "decode", drafts)

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
        self._publisher.map(request, 1 + len(drafts), self.room)
        return drafts

    def _make_room(self, request: Request, count: int) -> bool:
        """Map the blocks of its next tokens; False when it had to be preempted itself, or waits.

        It waits where a transfer has its blocks: if it gave way, it would come back to the next
        transfer, for ever.
        """
        if self.room.is_mapped(request, count):
            return True
        while not self.room.fits(request, count):
            self._is_short = True
            victim = self._queues.last()
            if victim is request and self._may_wait(request):
                return False
            self._give_up_blocks(victim, "the pool is full")
            if victim is request:
                return False
        self._publisher.map(request, count, self.room)
        return True

    def _may_wait(self, request: Request) -> bool:
        """Whether a transfer under way gives blocks back, or one behind it, loaded now, can be
        preempted in the next step."""
        return self.host.is_busy or self._queues.awaits_memory_behind(request)

    def _give_up_blocks(self, request: Request, reason: str) -> None:
        """Preempt it: it waits, and is computed again."""
        self._queues.preempt(request, reason)
        for pool in self.pools:
            pool.release_all(request, lives_on=True)

    def _trim_windows(self, request: Request, under_way: Row | None) -> None:
        """Give back the blocks that no query sees any more, of this step or one in flight."""
        first_query = under_way.computed if under_way else request.computed
        for group, pool in enumerate(self.pools):
            window = self._groups[group].window
            if window is None:
                continue
            index = first_seen_block(first_query, window, self.config.block_size) - 1
            while index >= 0 and request.tables[group][index] is not None:
                pool.release(request, index)
                index -= 1


def _scheduled(rows: Sequence[Row]) -> StepScheduled:
    return StepScheduled(
        requests=tuple(row.request.name for row in rows),
        computed=tuple(row.computed for row in rows),
        scheduled=tuple(row.query_len for row in rows),
        phases=tuple(row.phase for row in rows),
    )
