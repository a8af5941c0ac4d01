"""What a pool does by itself, case by case. Everything at once: test_pool_machine.py."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.block_pool import BlockPool
from kvrewind.engine.contents import Contents
from kvrewind.engine.decisions import Policy, Reference, reference_answer
from kvrewind.engine.inputs import BlockCopy, BlockScrub
from kvrewind.engine.journal import Journal
from kvrewind.engine.pool_rules import PoolRules
from kvrewind.engine.questions import Answer, Hit, Publish, Question, Reuse, Scrub, Taken
from kvrewind.engine.request import Prompt, Request
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRegistered,
    BlockScrubbed,
    BlockUnregistered,
    DecisionMade,
    Event,
)
from kvrewind.recorder.memory import MemorySink

SIZE = 2
CONTENTS = Contents(SIZE)


class Bench:
    """A pool with its events; requests have two blocks of tokens of their own."""

    def __init__(self, blocks: int = 3, policy: Policy | None = None, **rules: Any) -> None:
        self.sink = MemorySink()
        self.journal = Journal(self.sink, policy or Reference())
        self.pool = BlockPool(blocks, self.journal, rules=PoolRules(**rules))
        self.journal.step = 1

    def request(self, name: str, tokens: tuple[int, ...] = (1, 2, 3, 4), **how: Any) -> Request:
        return Request.of(Prompt(request=name, prompt_tokens=tokens, max_new_tokens=1, **how))

    def publish(self, request: Request, index: int = 0, written: int = SIZE) -> None:
        self.pool.publish(request, index, CONTENTS.of(request, index), written)

    def cached(self, name: str, tokens: tuple[int, ...], **how: Any) -> int:
        """A free block with the request's first tokens, findable."""
        request = self.request(name, tokens, **how)
        self.pool.allocate(request, 0)
        self.publish(request)
        self.pool.release_all(request, lives_on=False)
        return self.block_of(BlockRegistered)

    def block_of(self, kind: type[Any]) -> int:
        """Of the last such event."""
        return self.events(kind)[-1].block

    def hand_out(self, count: int) -> list[int]:
        """The blocks that come next."""
        greedy = self.request("greedy", (9, 9))
        for index in range(count):
            self.pool.allocate(greedy, index)
        return [block for block in greedy.table.entries() if block is not None]

    def share(self, request: Request, index: int = 0) -> None:
        entry = self.pool.cache.holding(CONTENTS.of(request, index))
        assert entry is not None
        self.pool.share(request, index, Hit(entry.block, entry.key), "share")

    def events(self, kind: type[Event]) -> list[Any]:
        return [e.event for e in self.sink.envelopes if isinstance(e.event, kind)]

    def story(self) -> list[str]:
        """Kinds of events, decisions left out."""
        kinds = [e.kind for e in self.sink.envelopes if not isinstance(e.event, DecisionMade)]
        return [kind.removeprefix("Block") for kind in kinds]


def test_cached_blocks_are_evicted_least_recently_used_first_among_equals() -> None:
    bench = Bench()
    blocks = [bench.cached(n, (i, i)) for i, n in enumerate("abc", start=1)]
    revived = bench.request("again", (1, 1))
    bench.share(revived)
    bench.pool.release_all(revived, lives_on=False)
    assert bench.hand_out(3) == [blocks[1], blocks[2], blocks[0]]


def test_retained_blocks_outlast_others_and_pinned_ones_outlast_all() -> None:
    bench = Bench(blocks=4)
    pinned = bench.cached("a", (1, 1), pin=True)
    retained = bench.cached("b", (2, 2), retention=2)
    plain = bench.cached("c", (3, 3))
    uncached = 3
    assert bench.hand_out(4) == [uncached, plain, retained, pinned]


def test_an_entry_that_several_share_is_kept_as_long_as_any_of_them_wants() -> None:
    bench = Bench()
    bench.cached("a", (1, 1), retention=1)
    sharer = bench.request("again", (1, 1), pin=True)
    bench.share(sharer)
    bench.pool.release_all(sharer, lives_on=False)
    last = bench.cached("b", (2, 2), retention=5)
    assert bench.hand_out(3)[1:] == [last, 0]


def test_a_block_handed_out_anew_is_worth_nothing_yet() -> None:
    bench = Bench()
    bench.cached("a", (1, 1), pin=True)
    taken = bench.request("b")
    for index in range(3):
        bench.pool.allocate(taken, index)
    bench.pool.release_all(taken, lives_on=False)
    assert bench.hand_out(3) == [0, 2, 1]


def test_quarantined_blocks_are_free_and_not_to_be_had() -> None:
    bench = Bench(quarantine=2)
    assert (bench.pool.num_free, bench.pool.free_queue()) == (1, (0, 1, 2))
    assert bench.hand_out(1) == [0]
    assert bench.pool.num_free == 0


def test_a_block_held_back_is_found_and_shared_but_not_handed_out() -> None:
    bench = Bench(blocks=2)
    block = bench.cached("a", (1, 1))
    bench.pool.hold_back(block)
    assert bench.pool.num_free_without({block}) == 1
    assert bench.hand_out(1) == [1]
    bench.share(bench.request("again", (1, 1)))
    assert bench.pool.free_queue() == ()
    bench.pool.give_back(block)


def test_the_extra_keys_of_a_block_are_told() -> None:
    bench = Bench()
    request = bench.request("a", extra_keys=((2, "image"), (0, "salt")))
    for index in range(2):
        bench.pool.allocate(request, index)
        bench.publish(request, index)
    assert [e.extra_keys for e in bench.events(BlockRegistered)] == [[[0, "salt"]], [[2, "image"]]]
    plain = Bench()
    plain.cached("a", (1, 1))
    assert plain.events(BlockRegistered)[0].extra_keys is None


def test_a_block_that_is_not_whole_stays_out_of_the_index_without_a_decision() -> None:
    bench = Bench()
    request = bench.request("a")
    bench.pool.allocate(request, 0)
    for written in range(SIZE):
        bench.publish(request, written=written)
    assert not list(bench.pool.cache.entries())
    assert {e.about for e in bench.events(DecisionMade)} == {"reuse"}


@pytest.mark.parametrize("how", ["zero", "nan"])
def test_scrubbed_when_freed_unless_cached_and_then_when_evicted(how: Any) -> None:
    bench = Bench(blocks=1, scrub=how, scrub_at="free")
    bench.cached("a", (1, 1))
    assert not bench.events(BlockScrubbed)
    other = bench.request("b")
    bench.pool.allocate(other, 0)
    bench.pool.release_all(other, lives_on=True)
    assert bench.story() == [
        *("Allocated", "Registered", "Released", "Freed"),
        *("Unregistered", "Scrubbed", "Allocated", "Released", "Freed", "Scrubbed"),
    ]
    assert {e.how for e in bench.events(BlockScrubbed)} == {how}
    made = [e.decision for e in bench.events(DecisionMade) if e.about.startswith("scrub")]
    assert made == ["scrub-evicted:b:0:0", "scrub:b:0:0"]
    assert [e.decision for e in bench.events(BlockScrubbed)] == made


def test_scrubbed_each_time_that_it_is_handed_out() -> None:
    bench = Bench(blocks=1, scrub="nan", scrub_at="allocation")
    bench.cached("a", (1, 1))
    bench.hand_out(1)
    assert bench.story() == [
        *("Allocated", "Scrubbed", "Registered", "Released", "Freed"),
        *("Unregistered", "Allocated", "Scrubbed"),
    ]


def test_without_the_switch_nothing_is_scrubbed() -> None:
    bench = Bench(blocks=1)
    bench.cached("a", (1, 1))
    bench.hand_out(1)
    assert (bench.events(BlockScrubbed), bench.pool.take_moves()) == ([], ())


def test_the_device_gets_scrubs_and_copies_in_the_order_of_the_trace() -> None:
    """A block is copied from, given up, scrubbed, handed out and copied to, all in one step."""
    bench = Bench(blocks=2, scrub="zero")
    parent, child = bench.request("a"), bench.request("b")
    bench.pool.allocate(parent, 0)
    bench.pool.fork(child, parent, "fork")
    bench.pool.copy_on_write(child, 0, 1)
    bench.pool.release_all(parent, lives_on=True)
    grandchild = bench.request("c")
    bench.pool.fork(grandchild, child, "fork")
    bench.pool.copy_on_write(grandchild, 0, 1)
    assert bench.pool.take_moves() == (
        BlockCopy(0, 1, 1, 0),
        BlockScrub(0, "zero", 0),
        BlockCopy(1, 0, 1, 0),
    )
    assert bench.pool.take_moves() == ()
    told = [e for e in bench.story() if e in ("Copied", "Scrubbed")]
    assert told == ["Copied", "Scrubbed", "Copied"]
    assert [e.destination for e in bench.events(BlockCopied)] == [1, 0]


# The seam: what has gone wrong elsewhere can be planted as another answer.


class Otherwise:
    """The right answers, but for one kind of question."""

    def __init__(self, kind: type[Any], other: Any) -> None:
        self._kind, self._other = kind, other
        self.asked: list[Any] = []

    def answer(self, question: Question) -> Answer:
        if not isinstance(question, self._kind):
            return reference_answer(question)
        self.asked.append(question)
        return self._other(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        pass


def test_a_race_for_one_block_can_be_planted() -> None:
    def race(question: Reuse) -> Taken:
        before = question.before
        is_late = before is not None and before.request != question.id.request
        return Taken(before.block if before and is_late else question.head, unregister=True)

    bench = Bench(policy=Otherwise(Reuse, race))
    a, b, c = (bench.request(name) for name in "abc")
    bench.pool.allocate(a, 0)
    bench.pool.allocate(b, 0)
    bench.journal.step += 1
    bench.pool.allocate(c, 0)
    assert [e.block for e in bench.events(BlockAllocated)] == [0, 0, 1]
    assert bench.pool.free_queue() == (2,)


def test_a_block_can_be_published_before_it_is_written() -> None:
    early = Otherwise(Publish, lambda question: question.content.key)
    bench = Bench(policy=early)
    request = bench.request("a")
    bench.pool.allocate(request, 0)
    bench.publish(request, written=0)
    bench.publish(request, written=SIZE)
    assert [question.written for question in early.asked] == [0]
    assert [e.decision for e in bench.events(BlockRegistered)] == ["publish:a:0:0"]


def test_a_key_can_be_left_in_the_index_by_the_block_that_it_named() -> None:
    keeps = Otherwise(Reuse, lambda question: Taken(question.head, unregister=False))
    bench = Bench(blocks=1, policy=keeps)
    bench.cached("a", (1, 1))
    bench.hand_out(1)
    assert not bench.events(BlockUnregistered)
    assert [entry.block for entry in bench.pool.cache.entries()] == [0]


def test_a_scrub_can_be_forgotten_and_the_decision_shows_it() -> None:
    forgets = Otherwise(Scrub, lambda question: None)
    bench = Bench(blocks=2, policy=forgets, scrub="nan")
    bench.cached("a", (1, 1))
    other = bench.request("b")
    bench.pool.allocate(other, 0)
    bench.pool.release_all(other, lives_on=False)
    assert [question.is_cached for question in forgets.asked] == [True, False]
    made = [(e.decision, e.choice) for e in bench.events(DecisionMade) if e.about == "scrub"]
    assert made == [("scrub:b:0:0", None)]
    assert (bench.events(BlockScrubbed), len(bench.events(BlockFreed))) == ([], 2)
