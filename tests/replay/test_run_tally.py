"""What a run has done is counted from its events alone, at any moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders import Trace
from kvrewind.engine.clock import SimulatedClock
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.meter import Meter
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import SpanDropped
from kvrewind.recorder.observed import ObservedSink
from kvrewind.replay.run_tally import PoolUse, RunTally
from scenes import shared_prefix

TIGHT = EngineConfig(num_blocks=14, block_size=4, max_num_seqs=4)


def prompts() -> Iterator[Prompt]:
    for number in range(9):
        yield Prompt(
            request=f"r{number}",
            prompt_tokens=(*range(10, 22), *range(30 + number, 40 + number)),
            max_new_tokens=12,
            ignore_eos=True,
            arrival_step=1 + 3 * number,
        )


class EachStep:
    """A run with a tally and a meter, and its pool after each step: as counted, as the engine
    has it."""

    def __init__(self) -> None:
        clock = SimulatedClock()
        self.tally = RunTally()
        self.meter = Meter(clock)
        self.pools: list[tuple[PoolUse, PoolUse]] = []
        self._observed = ObservedSink(self.meter, [self.tally])
        self._engine = make_engine(
            SymbolicModel(), TIGHT, list(prompts()), self._observed, clock=clock
        )
        self._engine.run(400, self._look)
        self._observed.step_over()

    def _look(self) -> None:
        self._observed.step_over()
        pool = self._engine.pools[0]
        waiting = pool.free_queue()
        cached = len({entry.block for entry in pool.cache.entries()} & set(waiting))
        used = TIGHT.num_blocks - len(waiting)
        theirs = PoolUse(used, cached, len(waiting) - cached)
        self.pools.append((self.tally.pools()[0], theirs))


@pytest.fixture(scope="module")
def busy() -> EachStep:
    return EachStep()


def test_the_pool_is_counted_as_the_engine_has_it_after_each_step(busy: EachStep) -> None:
    assert all(counted == theirs for counted, theirs in busy.pools)
    seen = [counted for counted, _ in busy.pools]
    assert max(use.used for use in seen) > 10
    assert max(use.cached for use in seen) > 1
    assert len({use.free for use in seen}) > 3


def test_the_counts_are_those_of_the_meter(busy: EachStep) -> None:
    tally, measured = busy.tally, busy.meter.measured()
    assert measured.preemptions > 0
    assert 0 < measured.hit_rate < 1
    assert measured.evictions > 0
    for name in (
        "requests", "prompt_tokens", "cached_tokens", "sampled_tokens", "steps", "preemptions",
        "evictions", "hit_rate",
    ):  # fmt: skip
        assert getattr(tally, name) == getattr(measured, name), name
    assert tally.finished == tally.requests


def test_another_engines_events_are_counted_as_far_as_they_go() -> None:
    trace = shared_prefix()
    tally = RunTally()
    tally(trace.envelopes())
    assert (tally.requests, tally.finished, tally.prompt_tokens) == (2, 2, 13)
    assert tally.cached_tokens == 4
    assert tally.pools() == {0: PoolUse(0, 1, 7)}
    without_header = RunTally()
    without_header(trace.envelopes()[1:8])
    assert without_header.pools()[0].free is None


def test_what_was_dropped_is_counted_and_the_pool_is_unknown_until_told_anew() -> None:
    trace = Trace()
    trace.next_step()
    trace.add("A", [1, 2, 3])
    trace.allocate("A", 0, 2)
    trace.emit(SpanDropped(first_seq=3, count=17, why="full"))
    trace.allocate("A", 1, 3)
    tally = RunTally()
    tally(trace.envelopes())
    assert tally.dropped_events == 17
    assert tally.pools()[0].used == 1
