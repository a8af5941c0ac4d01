"""Weights and adapters loaded anew: nothing that was computed before is read after."""

from __future__ import annotations

from kvrewind.engine.epochs import EpochChange
from kvrewind.recorder.events import (
    BlockScrubbed,
    BlockUnregistered,
    EpochChanged,
    PrefixLookedUp,
    RequestPreempted,
    TransferStarted,
)
from simulated import answers, events, prompt, run

WEIGHTS = EpochChange("weights", "v2", step=6)


def twice(**fields):
    return [
        prompt("a", range(3, 15), **fields),
        prompt("b", range(3, 15), arrival_step=8, **fields),
    ]


def hits(sink):
    return {e.request: e.hit_tokens for e in events(sink, PrefixLookedUp)}


def test_the_index_is_reset_when_weights_change() -> None:
    _, without = run(twice())
    assert hits(without) == {"a": 0, "b": 8}
    _, sink = run(twice(), [WEIGHTS])
    assert hits(sink) == {"a": 0, "b": 0}
    assert {e.reason for e in events(sink, BlockUnregistered)} == {"reset"}
    assert events(sink, EpochChanged) == [EpochChanged(epoch="v2", what="weights")]


def test_an_adapters_change_concerns_its_own_requests_alone() -> None:
    change = EpochChange("adapter", "v2", adapter="x", step=6)
    assert hits(run(twice(adapter="x"), [change])[1])["b"] == 0
    assert hits(run(twice(adapter="y"), [change])[1])["b"] == 8
    assert hits(run(twice(), [change])[1])["b"] == 8


def test_a_request_under_way_computes_its_tokens_again() -> None:
    engine, sink = run(
        [prompt("a", range(3, 15), max_new_tokens=9)], [EpochChange("weights", 2, step=4)]
    )
    assert [e.reason for e in events(sink, RequestPreempted)] == ["the weights changed"]
    plain, _ = run([prompt("a", range(3, 15), max_new_tokens=9)])
    assert answers(engine) == answers(plain)


def test_what_host_memory_kept_of_the_old_weights_is_not_loaded() -> None:
    prompts = [
        prompt("a", range(3, 16)),
        prompt("other", range(30, 50), arrival_step=8),
        prompt("again", range(3, 16), arrival_step=20),
    ]
    switches = {"num_blocks": 6, "host_blocks": 8}
    loads = {
        bool(epochs): [e for e in events(run(prompts, epochs, **switches)[1], TransferStarted)
                       if e.direction == "load"]
        for epochs in ((), (EpochChange("weights", "v2", step=15),))
    }  # fmt: skip
    assert len(loads[False]) == 1
    assert not loads[True]


def test_blocks_whose_entries_are_reset_are_scrubbed_before_they_are_used_again() -> None:
    _, sink = run(twice(), [WEIGHTS], num_blocks=4, scrub="nan")
    reset = {e.block for e in events(sink, BlockUnregistered)}
    scrubbed = {e.block for e in events(sink, BlockScrubbed)}
    assert reset
    assert reset <= scrubbed


def test_with_two_steps_in_flight_everything_completes_before_the_change() -> None:
    _, sink = run(
        [prompt("a", range(3, 15), max_new_tokens=9)],
        [EpochChange("weights", 2, step=4)],
        steps_in_flight=2,
    )
    kinds = [(e.step, e.kind) for e in sink.envelopes]
    assert kinds.index((3, "StepCompleted")) < kinds.index((4, "EpochChanged"))
