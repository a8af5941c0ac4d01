"""Block pool, prefix index, lookup and publishing against a plain model, under every switch."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvrewind.engine.block_pool import BlockPool
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.contents import Contents
from kvrewind.engine.decisions import Reference
from kvrewind.engine.granularity import Unit
from kvrewind.engine.inputs import BlockScrub
from kvrewind.engine.journal import Journal
from kvrewind.engine.lookup import PrefixLookup
from kvrewind.engine.pool_rules import PoolRules
from kvrewind.engine.publishing import Publisher
from kvrewind.engine.request import Prompt, Request
from kvrewind.engine.rows import Row
from kvrewind.engine.runner import KVGroup
from kvrewind.recorder.events import (
    BlockScrubbed,
    DecisionMade,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RunStarted,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State

BLOCKS, SIZE, STOP = 6, 2, 3

PlainContent = tuple[object, tuple[int, ...], frozenset[tuple[int, str | int]]]
"""For whom, all tokens up to the block's end, extra keys below it."""

tokens = st.lists(st.sampled_from([1, 1, 1, 2, STOP]), min_size=1, max_size=4 * SIZE + 1)

switches = st.fixed_dictionaries(
    {
        "reuse": st.sampled_from(["first-freed", "last-freed", "quarantine=1", "quarantine=3"]),
        "scrub": st.sampled_from(["none", "zero", "nan"]),
        "scrub_at": st.sampled_from(["free", "allocation"]),
        "sharing": st.sampled_from(["off", "tenant", "tenant", "global"]),
        "granularity": st.sampled_from(["block", "paragraph", "prompt", "sequence"]),
    }
)


class Plain:
    """What the pool must do, in dicts and lists: `holders` of each held block, `queue` of free
    ones (longest free first), `keyed` blocks with their contents (oldest first)."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.holders: dict[int, list[tuple[str, int]]] = {}
        self.queue = list(range(BLOCKS))
        self.held_back: list[int] = []
        self.keyed: dict[int, PlainContent] = {}
        self.worth: dict[int, tuple[bool, int]] = {}
        self.generations = Counter[int]()
        self.ends: list[tuple[PlainContent, tuple[int, ...]]] = []
        self.scrubs: list[int] = []

    def available(self) -> list[int]:
        free = [block for block in self.queue if block not in self.held_back]
        return free[: max(0, len(free) - self.config.quarantine)]

    def next_block(self) -> int:
        cheapest = min(self.worth.get(block, (False, 0)) for block in self.available())
        same = [b for b in self.available() if self.worth.get(b, (False, 0)) == cheapest]
        return same[-1 if self.config.reuse == "last-freed" else 0]

    def allocate(self, request: Request, index: int) -> int:
        block = self.next_block()
        if block in self.keyed:
            self._forget(block)
            self._scrub(block, "free")
        self._scrub(block, "allocation")
        self.queue.remove(block)
        self.holders[block] = [(request.name, index)]
        self.generations[block] += 1
        return block

    def _forget(self, block: int) -> None:
        content = self.keyed.pop(block)
        del self.worth[block]
        if content not in self.keyed.values():
            self.ends = [end for end in self.ends if end[0] != content]

    def _scrub(self, block: int, moment: str) -> None:
        if self.config.scrub != "none" and self.config.scrub_at == moment:
            self.scrubs.append(block)

    def release(self, request: Request, index: int) -> None:
        block = next(b for b, held in self.holders.items() if (request.name, index) in held)
        self.holders[block].remove((request.name, index))
        if not self.holders[block]:
            del self.holders[block]
            self.queue.append(block)
            if block not in self.keyed:
                self._scrub(block, "free")

    def content(self, request: Request, index: int) -> PlainContent:
        prompt, end = request.prompt, (index + 1) * SIZE
        tenant = None if self.config.sharing == "global" else prompt.tenant
        keys = frozenset(key for key in prompt.extra_keys if key[0] < end)
        return (tenant, prompt.adapter), tuple(request.tokens[:end]), keys

    def hits(self, request: Request) -> list[int]:
        """The blocks that a lookup gives."""
        found: list[int] = []
        for index in range((len(request.tokens) - 1) // SIZE):
            content = self.content(request, index)
            block = next((b for b, kept in self.keyed.items() if kept == content), None)
            if block is None:
                break
            found.append(block)
        return found[: self.whole(request, len(found))]

    def whole(self, request: Request, found: int) -> int:
        told = request.tokens
        match self.config.granularity:
            case "block":
                return found
            case "paragraph":
                ends = [i + 1 for i in range(found * SIZE) if told[i] == STOP]
                return max(ends, default=0) // SIZE
        units = [0]
        for content, unit in self.ends:
            blocks = len(content[1]) // SIZE
            is_found = blocks <= found or (blocks == found + 1 and blocks * SIZE == len(told))
            is_equal = tuple(told[: len(unit)]) == unit
            if is_found and is_equal and content == self.content(request, blocks - 1):
                units.append(min(blocks, found))
        return max(units)

    def share(self, request: Request, index: int, block: int) -> None:
        self.holders.setdefault(block, []).append((request.name, index))
        self.worth[block] = max(self.worth[block], _worth(request))
        if block in self.queue:
            self.queue.remove(block)

    def publish(self, request: Request, index: int, block: int) -> None:
        if self.config.sharing != "off" and block not in self.keyed:
            self.keyed[block] = self.content(request, index)
            self.worth[block] = _worth(request)

    def mark(self, request: Request, length: int) -> None:
        blocks = min(length, len(request.tokens) - 1) // SIZE
        if blocks and self.content(request, blocks - 1) in self.keyed.values():
            unit = tuple(request.tokens[:length])
            self.ends.append((self.content(request, blocks - 1), unit))


def _worth(request: Request) -> tuple[bool, int]:
    return request.prompt.pin, request.prompt.retention


class PoolMachine(RuleBasedStateMachine):
    @initialize(chosen=switches, group=st.sampled_from([0, 1]))
    def begin(self, chosen: dict[str, Any], group: int) -> None:
        self.config = EngineConfig(block_size=SIZE, num_blocks=BLOCKS, **chosen)
        self.sink, self.state, self.folded = MemorySink(), State(), 0
        self.journal = Journal(self.sink, Reference())
        self.journal.emit(_header())
        self.pool = BlockPool(BLOCKS, self.journal, group, PoolRules.of(self.config))
        contents = Contents(SIZE, self.config.sharing)
        self.publisher = Publisher(self.config, [self.pool], contents)
        unit = Unit(self.config.granularity, frozenset({STOP}))
        whole = [KVGroup(layers=(0,), window=None)]
        self.lookup = PrefixLookup(SIZE, [self.pool], whole, self.journal, contents.of, unit)
        self.plain = Plain(self.config)
        self.requests: dict[str, Request] = {}
        self.live: list[Request] = []
        self.admitted: set[str] = set()

    def one_of(self, data: st.DataObject, requests: list[Request]) -> Request:
        return self.requests[data.draw(st.sampled_from([r.name for r in requests]))]

    def waiting(self) -> list[Request]:
        return [r for r in self.live if r.name not in self.admitted]

    def running(self) -> list[Request]:
        return [r for r in self.live if r.name in self.admitted]

    def growing(self) -> list[Request]:
        return [r for r in self.running() if len(self.pool.table(r)) * SIZE < len(r.tokens)]

    def computable(self) -> list[Request]:
        return [r for r in self.live if self.limit(r) > r.computed]

    def limit(self, request: Request) -> int:
        return min(len(request.tokens), len(self.pool.table(request)) * SIZE)

    @rule(
        told=tokens,
        copied=st.integers(0, 4 * SIZE),
        who=st.sampled_from([(None, None), (None, None), ("a", None), (None, "lora")]),
        keys=st.sampled_from([(), (), ((0, "x"),), ((2, "x"),), ((3, "x"),), ((2, "y"),)]),
        worth=st.sampled_from([(False, 0), (False, 0), (False, 2), (True, 0)]),
        is_served=st.sampled_from([True, True, False]),
    )
    def arrive(
        self, told: list[int], copied: int, who: Any, keys: Any, worth: Any, is_served: bool
    ) -> None:
        """A request that begins as the first one does."""
        before = next(iter(self.requests.values())).tokens if self.requests else []
        prompt = Prompt(
            request=f"r{len(self.requests)}",
            prompt_tokens=(*before[:copied], *told),
            max_new_tokens=9,
            tenant=who[0],
            adapter=who[1],
            extra_keys=keys,
            pin=worth[0],
            retention=worth[1],
        )
        request = Request.of(prompt, groups=2)
        self.add(request)
        if is_served:
            self.serve_one(request)

    def add(self, request: Request) -> None:
        prompt = request.prompt
        self.requests[request.name] = request
        self.live.append(request)
        self.journal.emit(
            RequestAdded(request=request.name, prompt_tokens=prompt.prompt_tokens, max_new_tokens=9)
        )

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        """All that a request needs, as far as there is room."""
        self.serve_one(self.one_of(data, self.live))

    def serve_one(self, request: Request) -> None:
        if request in self.waiting():
            self.admit_one(request)
        while request in self.growing() and self.plain.available():
            self.grow_one(request)
        if request in self.computable():
            self.compute_up_to(request, self.limit(request))

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.admit_one(self.one_of(data, self.waiting()))

    def admit_one(self, request: Request) -> None:
        lookup = self.lookup.of(request)
        assert [m.hit.block for m in lookup.mapped[0]] == self.plain.hits(request)
        request.admissions += 1
        self.admitted.add(request.name)
        for mapped in lookup.mapped[0]:
            self.journal.carry_out(mapped.question, mapped.hit)
            self.pool.share(request, mapped.index, mapped.hit, str(mapped.question.id))
            self.plain.share(request, mapped.index, mapped.hit.block)
        request.computed = lookup.blocks * SIZE

    @precondition(lambda self: self.growing() and self.plain.available())
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        self.grow_one(self.one_of(data, self.growing()))

    def grow_one(self, request: Request) -> None:
        index = len(self.pool.table(request))
        self.pool.allocate(request, index)
        self.publisher.mapped(request, index, self.pool)
        assert self.pool.table(request)[index] == self.plain.allocate(request, index)

    @precondition(lambda self: self.computable())
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        request = self.one_of(data, self.computable())
        start, end = request.computed, self.limit(request)
        self.compute_up_to(request, data.draw(st.integers(start + 1, end)))

    def compute_up_to(self, request: Request, end: int) -> None:
        start, request.computed = request.computed, end
        self.publisher.computed(Row(request, start, end - start, "prefill"), end)
        for index in range(start // SIZE, end // SIZE):
            block = self.pool.table(request)[index]
            assert block is not None
            self.plain.publish(request, index, block)
        prompt = len(request.prompt.prompt_tokens)
        if self.config.granularity == "prompt" and end >= prompt:
            self.plain.mark(request, prompt)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.sampled_from([1, 2, STOP]))
    def say(self, data: st.DataObject, token: int) -> None:
        request = self.one_of(data, self.live)
        request.tokens.append(token)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def fall_out_of_the_window(self, data: st.DataObject) -> None:
        request = self.one_of(data, self.running())
        table = self.pool.table(request)
        done = [i for i in range(request.computed // SIZE) if table[i] is not None]
        if done and len(table) > done[0] + 1:
            self.pool.release(request, done[0])
            self.plain.release(request, done[0])

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        request = self.one_of(data, self.running())
        self.journal.emit(RequestPreempted(request=request.name))
        self.let_go(request, lives_on=True)
        self.admitted.remove(request.name)
        request.computed = 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_whole=st.booleans())
    def finish(self, data: st.DataObject, is_whole: bool) -> None:
        request = self.one_of(data, self.live)
        if is_whole:
            self.publisher.ended(request)
            if self.config.granularity == "sequence":
                self.plain.mark(request, len(request.tokens))
        reason = "length" if is_whole else "aborted"
        self.journal.emit(RequestFinished(request=request.name, reason=reason))
        self.live.remove(request)
        self.let_go(request, lives_on=False)

    def let_go(self, request: Request, *, lives_on: bool) -> None:
        held = [i for i, b in enumerate(self.pool.table(request).entries()) if b is not None]
        self.pool.release_all(request, lives_on=lives_on)
        for index in reversed(held):
            self.plain.release(request, index)
        assert self.pool.table(request).entries() == ()

    @rule(block=st.integers(0, BLOCKS - 1))
    def transfer(self, block: int) -> None:
        """One begins to use the block, or the one that does ends."""
        if block in self.plain.held_back:
            self.pool.give_back(block)
            self.plain.held_back.remove(block)
        elif len(self.plain.held_back) < 2:
            self.pool.hold_back(block)
            self.plain.held_back.append(block)

    @invariant()
    def counts_are_holders_and_free_and_held_make_the_pool(self) -> None:
        for block in self.pool.blocks:
            holders = self.plain.holders.get(block.block_id, [])
            assert sorted(block.holders) == sorted(holders)
            assert block.ref_count == len(holders)
            assert block.generation == self.plain.generations[block.block_id]
        assert list(self.pool.free_queue()) == self.plain.queue
        assert sorted([*self.plain.queue, *self.plain.holders]) == list(range(BLOCKS))
        assert self.pool.num_free == len(self.plain.available())

    @invariant()
    def entries_name_the_blocks_that_carry_them(self) -> None:
        entries = list(self.pool.cache.entries())
        assert [e.block for e in entries] == list(self.plain.keyed)
        assert all(self.pool.blocks[e.block].entry is e for e in entries)
        told = [(e.content.tenant, e.content.adapter) for e in entries]
        assert told == [who for who, _, _ in self.plain.keyed.values()]

    @invariant()
    def the_device_scrubs_what_the_trace_says(self) -> None:
        wanted, self.plain.scrubs = self.plain.scrubs, []
        new = [e.event for e in self.sink.envelopes[self.folded :]]
        scrubbed = [e for e in new if isinstance(e, BlockScrubbed)]
        assert [(e.block, e.how) for e in scrubbed] == [(b, self.config.scrub) for b in wanted]
        assert all((event.group or 0) == self.pool.group for event in scrubbed)
        assert self.pool.take_moves() == tuple(
            BlockScrub(e.block, e.how, self.pool.group) for e in scrubbed
        )

    @invariant()
    def the_fold_of_the_events_is_the_pool(self) -> None:
        for envelope in self.sink.envelopes[self.folded :]:
            apply(self.state, envelope)
        self.folded = len(self.sink.envelopes)
        folded, pool = self.state.pool(self.pool.group), self.pool
        for block in pool.blocks:
            seen = folded.block(block.block_id)
            assert (seen.generation, seen.ref_count) == (block.generation, block.ref_count)
            keys = (block.entry.key,) if block.entry else ()
            assert seen.keys == keys
        assert tuple(folded.free) == pool.free_queue()
        for request in self.live:
            table = self.state.pool(pool.group).table(request.name)
            assert _stripped(table) == pool.table(request).entries()
        assert {(k, e.block) for k, es in folded.index.items() for e in es} == {
            (entry.key, entry.block) for entry in pool.cache.entries()
        }

    def teardown(self) -> None:
        made = [e.event for e in self.sink.envelopes if isinstance(e.event, DecisionMade)]
        counts = Counter(event.decision for event in made)
        assert not [id for id, count in counts.items() if count > 1], "ids of decisions are unique"


def _stripped(table: tuple[int | None, ...]) -> tuple[int | None, ...]:
    while table and table[-1] is None:
        table = table[:-1]
    return table


def _header() -> RunStarted:
    return RunStarted(
        engine="kvrewind",
        engine_version="2",
        model="none",
        dtype="float32",
        device="cpu",
        num_blocks=BLOCKS,
        block_size=SIZE,
        groups=[{"layers": [0], "kv_heads": 1, "head_dim": 1}] * 2,
        sentinel_blocks=(),
        wall_clock="2026-01-01T00:00:00+00:00",
        config={},
        versions={},
    )


PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
