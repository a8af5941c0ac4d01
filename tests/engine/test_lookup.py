"""Lookups over two KV groups: what both have is shared, and who lacks something says why."""

from __future__ import annotations

from kvrewind.engine.block_pool import BlockPool
from kvrewind.engine.contents import Contents
from kvrewind.engine.decisions import Reference
from kvrewind.engine.granularity import Granularity, Unit
from kvrewind.engine.journal import Journal
from kvrewind.engine.lookup import Lookup, PrefixLookup
from kvrewind.engine.request import Prompt, Request
from kvrewind.engine.runner import KVGroup
from kvrewind.recorder.memory import MemorySink

SIZE, WINDOW = 2, 4
STOP = 9
FULL, WINDOWED = 0, 1
TOKENS = (1, 2, 3, STOP, 5, 6, 7, 8)


class Bench:
    """Two pools in which a request has computed and published `TOKENS`, and let go of them."""

    def __init__(self, granularity: Granularity = "block") -> None:
        journal = Journal(MemorySink(), Reference())
        self.contents = Contents(SIZE)
        self.pools = [BlockPool(6, journal, group) for group in (FULL, WINDOWED)]
        groups = [KVGroup((0,), None), KVGroup((1,), WINDOW)]
        unit = Unit(granularity, frozenset({STOP}))
        self.lookup = PrefixLookup(SIZE, self.pools, groups, journal, self.contents.of, unit)
        first = self.request("first", TOKENS)
        for pool in self.pools:
            for index in range(len(TOKENS) // SIZE):
                pool.allocate(first, index)
                pool.publish(first, index, self.contents.of(first, index), written=SIZE)
            pool.release_all(first, lives_on=False)

    def request(self, name: str, tokens: tuple[int, ...]) -> Request:
        prompt = Prompt(request=name, prompt_tokens=tokens, max_new_tokens=1)
        return Request.of(prompt, groups=2)

    def evict(self, group: int, count: int) -> None:
        """The blocks that were published last go first."""
        pool, taker = self.pools[group], self.request("taker", (0,))
        for index in range(2 + count):  # two were never used
            pool.allocate(taker, index)

    def look_up(self, tokens: tuple[int, ...]) -> tuple[Lookup, str | None]:
        request = self.request("r", tokens)
        lookup = self.lookup.of(request)
        return lookup, self.lookup.why_missed(request, lookup)


def test_a_group_with_a_window_maps_only_what_the_next_query_sees() -> None:
    lookup, why = Bench().look_up((*TOKENS, 0))
    indices = [[mapped.index for mapped in of_group] for of_group in lookup.mapped]
    assert indices == [[0, 1, 2, 3], [2, 3]]  # the query at 8 sees the positions from 5 on
    assert (lookup.blocks, why) == (4, None)


def test_a_block_that_the_window_lacks_makes_the_prefix_shorter() -> None:
    bench = Bench()
    bench.evict(WINDOWED, 1)
    lookup, why = bench.look_up((*TOKENS, 0))
    assert (lookup.blocks, why) == (3, "evicted")
    assert len(lookup.keys) == 4, "all that was asked for"


def test_a_block_that_the_first_group_lacks_ends_the_prefix_whatever_others_have() -> None:
    bench = Bench()
    bench.evict(FULL, 2)
    lookup, why = bench.look_up((*TOKENS, 0))
    assert (lookup.blocks, why) == (2, "evicted")
    assert lookup.missed is not None


def test_a_prefix_made_shorter_still_ends_with_a_whole_unit() -> None:
    bench = Bench("paragraph")
    bench.evict(WINDOWED, 3)  # block 1, which ends the paragraph, and those behind it
    lookup, why = bench.look_up((*TOKENS, 0))
    assert (lookup.blocks, lookup.in_index, lookup.whole) == (0, 4, 2)
    assert why == "evicted"


def test_hits_cut_to_a_unit_were_asked_for_and_are_not_taken() -> None:
    lookup, why = Bench("paragraph").look_up((*TOKENS, 0))
    assert [mapped.index for mapped in lookup.mapped[FULL]] == [0, 1]
    assert (len(lookup.keys), lookup.missed) == (4, None)
    assert why == "cut to a whole paragraph"
