"""What the meter says of a run is what its events say, worked out by hand."""

from __future__ import annotations

import pytest
from kvrewind.engine.clock import SimulatedClock
from kvrewind.engine.meter import Meter, Waits
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockShared,
    BlockUnregistered,
    DraftVerified,
    Event,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RunStarted,
    StepScheduled,
    TokensSampled,
    TransferStarted,
)

HEADER = RunStarted(
    engine="kvrewind", engine_version="2", model="symbolic", dtype="float32", device="cpu",
    num_blocks=8, block_size=4, groups=[{"layers": [0]}, {"layers": [1]}], sentinel_blocks=(),
    wall_clock="", config={}, versions={},
)  # fmt: skip


def added(name: str, prompt: int, parent: str | None = None) -> RequestAdded:
    return RequestAdded(
        request=name, prompt_tokens=(5,) * prompt, max_new_tokens=9, parent=parent, priority=None
    )


def scheduled(*rows: tuple[str, int, int, str]) -> StepScheduled:
    names, computed, counts, phases = zip(*rows, strict=True)
    return StepScheduled(requests=names, computed=computed, scheduled=counts, phases=phases)


def sampled(*names: str) -> TokensSampled:
    zeros = (0,) * len(names)
    return TokensSampled(requests=names, tokens=zeros, positions=zeros, rows=zeros)


class Run:
    """Events at given times."""

    def __init__(self, *prompts: Prompt) -> None:
        self.clock = SimulatedClock()
        self.meter = Meter(self.clock, prompts)
        self.tell(0.0, HEADER)

    def tell(self, seconds: float, *events: Event) -> None:
        self.clock.wait_until(seconds)
        for event in events:
            self.meter.emit(event, 1)


def prompt(name: str, arrival_s: float | None, priority: int = 0) -> Prompt:
    return Prompt(
        request=name, prompt_tokens=(5,), max_new_tokens=9, arrival_s=arrival_s, priority=priority
    )


def test_the_hit_rate_is_what_first_admissions_found_computed() -> None:
    run = Run()
    run.tell(0, added("a", 16), added("b", 16), scheduled(("a", 0, 16, "prefill")), sampled("a"))
    run.tell(1, scheduled(("b", 12, 4, "prefill"), ("a", 16, 1, "decode")), sampled("b", "a"))
    measured = run.meter.measured()
    assert (measured.prompt_tokens, measured.cached_tokens) == (32, 12)
    assert measured.hit_rate == 12 / 32
    assert measured.sampled_tokens == 3


def test_what_a_preempted_request_finds_again_is_no_hit() -> None:
    run = Run()
    run.tell(0, added("a", 16), scheduled(("a", 4, 12, "prefill")), sampled("a"))
    run.tell(1, scheduled(("a", 16, 1, "decode")), sampled("a"))
    run.tell(2, RequestPreempted(request="a"), scheduled(("a", 8, 10, "prefill")), sampled("a"))
    measured = run.meter.measured()
    assert (measured.preemptions, measured.cached_tokens) == (1, 4)
    assert measured.recomputed_tokens == 9  # positions 8 to 16; 17 is new


def test_pieces_of_a_prompt_and_rejected_drafts_are_not_computed_twice() -> None:
    run = Run()
    run.tell(0, added("a", 16), scheduled(("a", 0, 10, "prefill")))
    run.tell(1, scheduled(("a", 10, 6, "prefill")), sampled("a"))
    run.tell(
        2,
        scheduled(("a", 16, 4, "decode")),
        DraftVerified(request="a", proposed=(1, 2, 3), first=17, accepted=1),
        sampled("a", "a"),
    )
    run.tell(3, scheduled(("a", 18, 1, "decode")), sampled("a"))
    measured = run.meter.measured()
    assert measured.recomputed_tokens == 0
    assert (measured.drafts, measured.drafts_accepted) == (3, 1)


def test_the_pool_in_use_is_what_requests_hold_in_all_groups() -> None:
    run = Run()
    blocks = [BlockAllocated(block=b, request="a", index=b) for b in range(3)]
    blocks += [BlockAllocated(block=0, request="a", index=0, group=1)]
    run.tell(0, added("a", 16), *blocks, scheduled(("a", 0, 16, "prefill")), sampled("a"))
    shared = BlockShared(block=0, request="b", index=0, ref_count=2)
    run.tell(1, added("b", 4), shared, scheduled(("b", 0, 4, "prefill")), sampled("b"))
    run.tell(2, *(BlockFreed(block=b, cached=True) for b in (1, 2)))
    revived = BlockShared(block=2, request="c", index=0, ref_count=1)
    run.tell(3, added("c", 4), revived, scheduled(("c", 0, 4, "prefill")), sampled("c"))
    measured = run.meter.measured()
    assert measured.pool_peak == 4 / 16
    assert measured.pool_mean == pytest.approx((4 + 4 + 3) / 3 / 16)


def test_only_an_eviction_counts_as_one() -> None:
    run = Run()
    for block, reason in enumerate(("evicted", "reset", "evicted")):
        run.tell(0, BlockUnregistered(block=block, key="k", reason=reason))
    assert run.meter.measured().evictions == 2


def test_transfers_count_by_block() -> None:
    run = Run()
    for direction, blocks in (("store", (1, 2)), ("load", (3,)), ("send", (4,))):
        run.tell(
            0, TransferStarted(transfer=direction, direction=direction, blocks=blocks, keys=())
        )
    measured = run.meter.measured()
    assert (measured.host_stores, measured.host_loads) == (2, 1)


def test_the_first_token_is_waited_for_from_the_arrival() -> None:
    """Taken in at 1.0, when the step began, but there since 0.4."""
    run = Run(prompt("a", 0.4))
    run.tell(1.0, added("a", 4))
    run.tell(1.5, scheduled(("a", 0, 4, "prefill")), sampled("a"))
    run.tell(1.7, sampled("a"))
    run.tell(2.0, sampled("a"))
    measured = run.meter.measured()
    assert measured.first_token.mean_s == pytest.approx(1.1)
    assert measured.next_token.mean_s == pytest.approx(0.25)
    assert measured.time_s == 2.0
    assert measured.tokens_per_s == pytest.approx(1.5)


def test_without_a_time_of_its_own_a_request_arrives_when_it_is_taken_in() -> None:
    run = Run(prompt("a", None))
    run.tell(1.0, added("a", 4))
    run.tell(1.5, sampled("a"))
    assert run.meter.measured().first_token.mean_s == pytest.approx(0.5)


def test_waits_are_told_by_the_priority_that_was_asked_for() -> None:
    run = Run(prompt("a", 0.0, priority=-1), prompt("b", 0.0), prompt("c", 0.0))
    run.tell(0.0, added("a", 4), added("b", 4), added("c", 4))
    run.tell(1.0, sampled("a"))
    run.tell(2.0, sampled("b"))
    run.tell(4.0, sampled("c"))
    by_priority = run.meter.measured().first_token_by_priority
    assert [(p, w.mean_s) for p, w in by_priority.items()] == [(-1, 1.0), (0, 3.0)]


def test_further_samples_of_a_prompt_count_once() -> None:
    run = Run(prompt("a", 0.0))
    run.tell(0.0, added("a", 8), added("a/1", 8, parent="a"), scheduled(("a", 0, 8, "prefill")))
    run.tell(1.0, sampled("a", "a/1"))
    run.tell(2.0, scheduled(("a", 8, 1, "decode"), ("a/1", 8, 1, "decode")), sampled("a", "a/1"))
    measured = run.meter.measured()
    assert (measured.requests, measured.prompt_tokens, measured.cached_tokens) == (2, 8, 0)
    assert measured.first_token == Waits.of([1.0])
    assert measured.next_token.mean_s == 1.0


def test_what_did_not_end_is_counted() -> None:
    run = Run()
    run.tell(0, added("a", 4), added("b", 4), RequestFinished(request="a", reason="length"))
    assert (run.meter.measured().requests, run.meter.measured().unfinished) == (2, 1)


def test_percentiles_are_those_of_the_waits() -> None:
    waits = Waits.of(range(101))
    assert (waits.mean_s, waits.p95_s, waits.p99_s) == (50, 95, 99)
    assert Waits.of([]) == Waits(None, None, None)
