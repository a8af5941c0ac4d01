"""The block pool against a plain model: counts, queue order, eviction, generations."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kvrewind.engine.block_pool import BlockPool
from kvrewind.engine.decisions import Hit, Reference
from kvrewind.engine.journal import Journal
from kvrewind.engine.prefix_cache import Content
from kvrewind.engine.request import Prompt, Request
from kvrewind.recorder.events import BlockUnregistered
from kvrewind.recorder.memory import MemorySink

BLOCKS = 5


def new_request(name: str) -> Request:
    return Request.of(Prompt(request=name, prompt_tokens=(1,), max_new_tokens=1))


class Pool(RuleBasedStateMachine):
    """`held` maps a block to its holders, `queue` is who is free, longest first, `keyed` maps a
    block to its content: nothing more is needed to say what the pool must do."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = MemorySink()
        self.pool = BlockPool(BLOCKS, Journal(self.sink, Reference()))
        self.requests: list[Request] = []
        self.held: dict[int, list[str]] = {}
        self.queue = list(range(BLOCKS))
        self.keyed: dict[int, Content] = {}
        self.generations = [0] * BLOCKS

    @rule()
    def arrive(self) -> None:
        self.requests.append(new_request(f"r{len(self.requests)}"))

    @precondition(lambda self: self.requests and self.queue)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        block = self.queue.pop(0)
        self.pool.allocate(request, len(request.table))
        self.held[block] = [request.name]
        self.keyed.pop(block, None)
        self.generations[block] += 1

    @precondition(lambda self: self.requests and self.keyed)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        block = data.draw(st.sampled_from(sorted(self.keyed)))
        key = self.keyed[block].key
        self.pool.share(request, len(request.table), Hit(block, key), "share")
        self.held.setdefault(block, []).append(request.name)
        if block in self.queue:
            self.queue.remove(block)

    @precondition(lambda self: any(len(r.table) for r in self.requests))
    @rule(data=st.data(), tokens=st.tuples(st.integers(0, 2), st.integers(0, 2)))
    def publish(self, data: st.DataObject, tokens: tuple[int, int]) -> None:
        request = data.draw(st.sampled_from([r for r in self.requests if len(r.table)]))
        index = data.draw(st.integers(0, len(request.table) - 1))
        content = Content(None, tokens, None)
        self.pool.publish(request, index, content, written=len(tokens))
        block = request.table[index]
        assert block is not None
        self.keyed.setdefault(block, content)

    @precondition(lambda self: any(len(r.table) for r in self.requests))
    @rule(data=st.data(), lives_on=st.booleans())
    def release(self, data: st.DataObject, lives_on: bool) -> None:
        request = data.draw(st.sampled_from([r for r in self.requests if len(r.table)]))
        blocks = [b for b in reversed(request.table.entries()) if b is not None]
        self.pool.release_all(request, lives_on=lives_on)
        for block in blocks:
            self.held[block].remove(request.name)
            if not self.held[block]:
                del self.held[block]
                self.queue.append(block)
        assert request.table.entries() == ()

    @invariant()
    def counts_are_holders(self) -> None:
        for block in self.pool.blocks:
            holders = self.held.get(block.block_id, [])
            assert block.ref_count == len(holders)
            assert sorted(name for name, _ in block.holders) == sorted(holders)

    @invariant()
    def the_queue_is_in_the_order_of_freeing(self) -> None:
        assert list(self.pool.free_queue()) == self.queue

    @invariant()
    def the_index_names_present_generations_only(self) -> None:
        assert {e.block: e.content for e in self.pool.cache.entries()} == self.keyed
        assert [b.generation for b in self.pool.blocks] == self.generations

    def teardown(self) -> None:
        evicted = [e.event for e in self.sink.envelopes if isinstance(e.event, BlockUnregistered)]
        assert all(event.reason == "evicted" for event in evicted)


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


def test_equal_tokens_after_another_parent_are_another_content() -> None:
    first, second = Content(None, (1, 2), None), Content(None, (3, 4), None)
    assert Content(first, (5, 6), None) != Content(second, (5, 6), None)
    assert Content(first, (5, 6), None).key != Content(second, (5, 6), None).key
    assert Content(first, (5, 6), None) == Content(Content(None, (1, 2), None), (5, 6), None)


def test_content_of_another_tenant_is_another_content() -> None:
    assert Content(None, (1, 2), "a") != Content(None, (1, 2), "b")
    assert Content(None, (1, 2), "a").key != Content(None, (1, 2), None).key
