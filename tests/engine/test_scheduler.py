"""What runs when: batching, budget, preemption, prefix hits, aborts, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.admission import PromptRefused
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import DidNotFinish, Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    Event,
    PrefixLookedUp,
    RequestFinished,
    RequestPreempted,
    StepScheduled,
)
from kvrewind.recorder.memory import MemorySink

MODEL = SymbolicModel()


def prompt(name: str, tokens: range, **how: Any) -> Prompt:
    defaults = {"max_new_tokens": 4, "ignore_eos": True}
    return Prompt(request=name, prompt_tokens=tuple(tokens), **(defaults | how))


def run(prompts: list[Prompt], **switches: Any) -> tuple[Engine, MemorySink]:
    sink = MemorySink()
    engine = make_engine(MODEL, EngineConfig(**({"block_size": 4} | switches)), prompts, sink)
    engine.run(max_steps=200)
    return engine, sink


def events(sink: MemorySink, kind: type[Event]) -> list[Any]:
    return [e.event for e in sink.envelopes if isinstance(e.event, kind)]


def test_prefill_and_decode_share_a_step() -> None:
    _, sink = run([prompt("a", range(3, 9)), prompt("b", range(20, 27), arrival_step=2)])
    assert ("decode", "prefill") in {s.phases for s in events(sink, StepScheduled)}


def test_a_static_batch_runs_to_its_end_before_the_next() -> None:
    late = prompt("b", range(20, 27), arrival_step=2)
    _, sink = run([prompt("a", range(3, 9)), late], continuous_batching=False)
    assert {s.requests for s in events(sink, StepScheduled)} == {("a",), ("b",)}


def test_a_prompt_beyond_the_budget_gets_a_step_of_its_own() -> None:
    prompts = [prompt("a", range(3, 8)), prompt("long", range(20, 50)), prompt("c", range(3, 6))]
    _, sink = run(prompts, max_num_batched_tokens=8, chunked_prefill=False)
    rows = {s.requests: s.scheduled for s in events(sink, StepScheduled)}
    assert rows[("long",)] == (30,)
    assert all(sum(n) <= 8 for names, n in rows.items() if names != ("long",))


def test_an_equal_prefix_is_computed_once_and_the_last_token_always() -> None:
    _, sink = run([prompt("a", range(3, 11)), prompt("b", range(3, 11), arrival_step=3)])
    hits = {e.request: e.hit_tokens for e in events(sink, PrefixLookedUp)}
    assert hits == {"a": 0, "b": 4}  # of 8 tokens, the second block holds the last one


def test_a_prefix_that_is_just_being_computed_is_waited_for_one_step() -> None:
    prompts = [prompt(n, range(3, 12)) for n in "abc"] + [prompt("d", range(30, 39))]
    _, sink = run(prompts)
    first, second, *_ = [s.requests for s in events(sink, StepScheduled)]
    assert (first, second) == (("a",), ("a", "b", "c", "d"))
    hits = {e.request: e.hit_tokens for e in events(sink, PrefixLookedUp)}
    assert hits == {"a": 0, "b": 8, "c": 8, "d": 0}


def test_tenants_do_not_share() -> None:
    prompts = [
        prompt("a", range(3, 12), tenant="x"),
        prompt("b", range(3, 12), tenant="y", arrival_step=3),
        prompt("c", range(3, 12), tenant="x", arrival_step=4),
    ]
    _, sink = run(prompts)
    hits = {e.request: e.hit_tokens for e in events(sink, PrefixLookedUp)}
    assert hits == {"a": 0, "b": 0, "c": 8}


def test_without_the_prefix_cache_nothing_is_looked_up() -> None:
    _, sink = run([prompt("a", range(3, 12))] * 1, prefix_cache=False)
    assert not events(sink, PrefixLookedUp)


def test_a_full_pool_preempts_the_one_admitted_last_and_it_says_the_same() -> None:
    prompts = [
        prompt(n, range(3 + 20 * i, 9 + 20 * i), max_new_tokens=9) for i, n in enumerate("ab")
    ]
    engine, sink = run(prompts, num_blocks=6)
    roomy, _ = run(prompts, num_blocks=60)
    assert [e.request for e in events(sink, RequestPreempted)] == ["b"]
    assert {n: r.tokens for n, r in engine.requests.items()} == {
        n: r.tokens for n, r in roomy.requests.items()
    }


def test_an_abort_ends_a_request_running_or_waiting() -> None:
    prompts = [
        prompt("a", range(3, 9), abort_step=3, max_new_tokens=20),
        prompt("b", range(30, 36), abort_step=2),
        prompt("c", range(50, 56)),
    ]
    engine, sink = run(prompts, max_num_seqs=1)
    assert {e.request: e.reason for e in events(sink, RequestFinished)} == {
        "a": "aborted", "b": "aborted", "c": "length",
    }  # fmt: skip
    assert len(engine.pools[0].free_queue()) == engine.config.num_blocks


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ([prompt("a", range(3, 3))], "empty prompt"),
        ([prompt("a", range(3, 99))], "needs 25 blocks"),
        ([prompt("a", range(3, 9), max_new_tokens=0)], "max_new_tokens"),
        ([prompt("a", range(100_000, 100_004))], "has token 100000"),
        ([prompt("a", range(3, 9)), prompt("a", range(3, 9))], "comes twice"),
    ],
)
def test_what_can_never_be_served_is_refused_before_the_first_step(
    bad: list[Prompt], told: str
) -> None:
    sink = MemorySink()
    with pytest.raises(PromptRefused, match=told):
        make_engine(MODEL, EngineConfig(block_size=4, num_blocks=8), bad, sink)
    assert len(sink.envelopes) == 1  # RunStarted alone


def test_a_run_that_does_not_end_is_cut_off() -> None:
    sink = MemorySink()
    engine = make_engine(MODEL, EngineConfig(), [prompt("a", range(3, 9), max_new_tokens=50)], sink)
    with pytest.raises(DidNotFinish):
        engine.run(max_steps=5)
    assert engine.step_number == 5
