"""Which requests run in a step, and what they need for it.

First come, first served. Running requests come first; when the pool is empty the one admitted
last is preempted and computed again later (recompute, as in vLLM).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..recorder.events import (
    Phase,
    PrefixLookedUp,
    RequestFinished,
    RequestPreempted,
    StepScheduled,
)
from .block_pool import BlockPool
from .config import EngineConfig
from .decisions import Admit, Hit, Share
from .journal import Journal
from .prefix_cache import Content
from .request import Request, Status

FinishReason = Literal["eos", "length", "aborted", "error"]


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: tokens [computed, computed + query_len)."""

    request: Request
    computed: int
    query_len: int
    phase: Phase

    @property
    def seq_len(self) -> int:
        return self.computed + self.query_len


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the prefix index gives for a request: the questions asked, in order, and the hits."""

    questions: tuple[Share, ...]
    hits: tuple[Hit, ...]


class Scheduler:
    """Waiting and running requests. Admission, preemption and finishing happen here only."""

    def __init__(self, config: EngineConfig, pool: BlockPool, journal: Journal) -> None:
        self.config = config
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._journal = journal

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> tuple[Row, ...]:
        """Decide the step's rows and map their blocks. May be empty when nothing can run."""
        rows = self._oversized_prompt() or self._batch()
        if rows:
            self._journal.emit(
                StepScheduled(
                    requests=tuple(row.request.name for row in rows),
                    computed=tuple(row.computed for row in rows),
                    scheduled=tuple(row.query_len for row in rows),
                    phases=tuple(row.phase for row in rows),
                )
            )
        return tuple(rows)

    def publish(self, row: Row) -> None:
        """After the pass: the blocks that the row filled enter the prefix index."""
        if self.config.prefix_cache:
            size = self.config.block_size
            for index in range(row.computed // size, row.seq_len // size):
                self.pool.publish(row.request, index, self.content(row.request, index))

    def finish(self, request: Request, reason: FinishReason) -> None:
        self._finish(request, reason)
        self.pool.release_all(request, lives_on=False)

    def content(self, request: Request, index: int) -> Content:
        """What the request's own tokens say that its `index`-th block holds."""
        size = self.config.block_size
        while len(request.contents) <= index:
            i = len(request.contents)
            parent = request.contents[-1] if request.contents else None
            tokens = tuple(request.tokens[i * size : (i + 1) * size])
            request.contents.append(Content(parent, tokens, request.prompt.tenant))
        return request.contents[index]

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _decode_rows(self) -> list[Row]:
        rows: list[Row] = []
        for request in tuple(self.running):
            if request.status is not Status.RUNNING:
                continue  # preempted for one before it
            if self._make_room(request):
                rows.append(Row(request, request.computed, 1, "decode"))
        return rows

    def _make_room(self, request: Request) -> bool:
        """Map the block of the request's next token; False when it had to be preempted itself."""
        index = request.computed // self.config.block_size
        if request.table[index] is not None:
            return True
        while not self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim, "the pool is full")
            self.pool.release_all(victim, lives_on=True)
            if victim is request:
                return False
        self.pool.allocate(request, index)
        return True

    def _may_admit(self, beside: Sequence[Row] = ()) -> bool:
        """A static batch is admitted whole, before any of it decodes."""
        if len(self.running) >= self.config.max_num_seqs:
            return False
        decoding = len(self.running) - sum(row.phase == "prefill" for row in beside)
        return self.config.continuous_batching or not decoding

    def _oversized_prompt(self) -> list[Row]:
        """The next prompt, if it is longer than any step's budget: it runs by itself."""
        if not self.waiting or not self._may_admit():
            return []
        request = self.waiting[0]
        lookup = self._look_up(request)
        if self._needed(request, lookup) <= self.config.max_num_batched_tokens:
            return []
        row = self._try_to_admit(request, lookup, None)
        return [row] if row else []

    def _batch(self) -> list[Row]:
        before = len(self.running)
        rows = self._decode_rows()
        preempted = len(self.running) < before
        budget = self.config.max_num_batched_tokens - len(rows)
        while self.waiting and not preempted and self._may_admit(beside=rows):
            request = self.waiting[0]
            lookup = self._look_up(request)
            if self._prefix_under_way(request, rows) > len(lookup.hits):
                break
            row = self._try_to_admit(request, lookup, budget)
            if row is None:
                break
            rows.append(row)
            budget -= row.query_len
        return rows

    def _prefix_under_way(self, request: Request, rows: Sequence[Row]) -> int:
        """Leading blocks that a row of this very step computes and will have published by the
        next one. Waiting a step for them is cheaper than computing them twice (as SGLang does).
        """
        if not self.config.prefix_cache or not self.config.continuous_batching:
            return 0
        usable = (len(request.tokens) - 1) // self.config.block_size
        prefills = [row for row in rows if row.phase == "prefill"]
        return max((self._common_blocks(request, row, usable) for row in prefills), default=0)

    def _common_blocks(self, request: Request, row: Row, usable: int) -> int:
        limit = min(usable, row.seq_len // self.config.block_size)
        for index in range(limit):
            if self.content(request, index) != self.content(row.request, index):
                return index
        return limit

    def _needed(self, request: Request, lookup: Lookup) -> int:
        return len(request.tokens) - len(lookup.hits) * self.config.block_size

    def _try_to_admit(self, request: Request, lookup: Lookup, budget: int | None) -> Row | None:
        computed = len(lookup.hits) * self.config.block_size
        needed = self._needed(request, lookup)
        question = Admit(self._journal.next_id("admit", request, 0), needed, budget)
        missing = [
            index
            for index in range(len(lookup.hits), self.blocks_for(len(request.tokens)))
            if request.table[index] is None
        ]
        if len(missing) > self._free_beside(lookup) or not self._journal.answer(question):
            return None
        self._admit(request)
        self._journal.carry_out(question, True)
        self._take_hits(request, lookup)
        for index in missing:
            self.pool.allocate(request, index)
        request.computed = computed
        return Row(request, computed, needed, "prefill")

    def _look_up(self, request: Request) -> Lookup:
        """The last token is always computed: its logits are needed."""
        if not self.config.prefix_cache:
            return Lookup((), ())
        questions: list[Share] = []
        hits: list[Hit] = []
        for index in range((len(request.tokens) - 1) // self.config.block_size):
            content = self.content(request, index)
            question = Share(
                self._journal.next_id("share", request, index), content, self.pool.cache
            )
            questions.append(question)
            hit: Hit | None = self._journal.answer(question)
            if hit is None:
                break
            hits.append(hit)
        return Lookup(tuple(questions), tuple(hits))

    def _free_beside(self, lookup: Lookup) -> int:
        """Free blocks that the hits themselves don't take out of the queue."""
        revived = {hit.block for hit in lookup.hits if not self.pool.blocks[hit.block].ref_count}
        return self.pool.num_free - len(revived)

    def _take_hits(self, request: Request, lookup: Lookup) -> None:
        if not lookup.questions:
            return
        keys = [hit.key for hit in lookup.hits]
        keys += [q.content.key for q in lookup.questions[len(keys) :]]
        self._journal.emit(
            PrefixLookedUp(
                request=request.name,
                keys=tuple(keys),
                blocks=tuple(hit.block for hit in lookup.hits),
                hit_tokens=len(lookup.hits) * self.config.block_size,
            )
        )
        for index, question in enumerate(lookup.questions):
            hit = lookup.hits[index] if index < len(lookup.hits) else None
            self._journal.carry_out(question, hit)
            if hit is not None:
                self.pool.share(request, index, hit, str(question.id))

    # Transitions: mutate and emit, nothing else does either. (Admission has no event of its own:
    # it is the decision `admit`, and the request's row in `StepScheduled`.)

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        request.admissions += 1

    def _preempt(self, request: Request, reason: str) -> None:
        self.running.remove(request)
        self.waiting.appendleft(request)
        request.status = Status.PREEMPTED
        request.computed = 0
        self._journal.emit(RequestPreempted(request=request.name, reason=reason))

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        self._journal.emit(RequestFinished(request=request.name, reason=reason))
