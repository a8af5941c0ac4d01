"""Whole runs under the switches of sharing, reuse and scrubbing: what they do, and that nothing is
said differently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    BlockScrubbed,
    BlockShared,
    Event,
    PrefixLookedUp,
    RequestPreempted,
    StepScheduled,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check

MODEL = SymbolicModel()
STOP = 3
"""The canary's full stop."""

SYSTEM = (*range(60, 71), STOP, *range(71, 78), STOP)  # two paragraphs, of 12 and of 8 tokens


def prompt(name: str, tokens: tuple[int, ...], step: int = 1, **how: Any) -> Prompt:
    told: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "arrival_step": step} | how
    return Prompt(request=name, prompt_tokens=tokens, **told)


def run(prompts: list[Prompt], **switches: Any) -> tuple[Engine, MemorySink]:
    sink = MemorySink()
    engine = make_engine(MODEL, EngineConfig(**({"block_size": 4} | switches)), prompts, sink)
    engine.run(max_steps=300)
    assert check(sink.envelopes).verdict == "clean"
    return engine, sink


def events(sink: MemorySink, kind: type[Event]) -> list[Any]:
    return [e.event for e in sink.envelopes if isinstance(e.event, kind)]


def lookups(sink: MemorySink) -> dict[str, tuple[int, str | None]]:
    """Request -> tokens hit, and why no more."""
    return {e.request: (e.hit_tokens, e.missed_because) for e in events(sink, PrefixLookedUp)}


def hits(sink: MemorySink) -> dict[str, int]:
    return {name: hit for name, (hit, _) in lookups(sink).items()}


def test_sharing_says_who_may_share() -> None:
    prompts = [
        prompt("a", (*SYSTEM, 40), tenant="x"),
        prompt("b", (*SYSTEM, 41), step=8, tenant="y"),
        prompt("c", (*SYSTEM, 42), step=16, tenant="x"),
    ]
    within, beyond = run(prompts)[1], run(prompts, sharing="global")[1]
    assert lookups(within)["b"] == (0, "other tenant")
    assert hits(within) == {"a": 0, "b": 0, "c": 20}
    assert hits(beyond) == {"a": 0, "b": 20, "c": 20}
    assert not events(run(prompts, sharing="off")[1], PrefixLookedUp)


def test_adapters_and_extra_keys_keep_equal_texts_apart() -> None:
    image = ((5, "image-1"),)
    prompts = [
        prompt("a", (*SYSTEM, 40), extra_keys=image),
        prompt("b", (*SYSTEM, 41), step=8, extra_keys=image),
        prompt("c", (*SYSTEM, 42), step=16, extra_keys=((5, "image-2"),)),
        prompt("d", (*SYSTEM, 43), step=24, adapter="lora"),
    ]
    found = lookups(run(prompts)[1])
    assert found == {
        "a": (0, "never seen"),
        "b": (20, None),
        "c": (4, "other extra key at 5"),
        "d": (0, "other adapter"),
    }


def test_paragraphs_are_shared_whole() -> None:
    prompts = [
        prompt("a", (*SYSTEM, 40, 41, 42, 43)),
        prompt("b", (*SYSTEM, 40, 41, 42, 43, 44), step=8),
        prompt("c", (*SYSTEM[:18], 50, 51, 52), step=16),
    ]
    by_block, by_paragraph = (
        lookups(run(prompts, granularity=unit)[1]) for unit in ("block", "paragraph")
    )
    assert by_block["b"] == (24, None)
    assert by_paragraph["b"] == (20, "cut to a whole paragraph")
    assert by_block["c"] == (16, "first differing token at 18")
    assert by_paragraph["c"] == (12, "cut to a whole paragraph")


def test_prompts_are_shared_whole() -> None:
    prompts = [
        prompt("a", (*SYSTEM, 40)),
        prompt("b", (*SYSTEM, 40, 41, 42), step=8),
        prompt("c", (*SYSTEM, 41, 42, 43), step=16),
        prompt("a again", (*SYSTEM, 40), step=24),
    ]
    found = lookups(run(prompts, granularity="prompt")[1])
    assert found["b"] == (20, "not aligned to a block")
    assert found["c"] == (0, "cut to a whole prompt"), "no earlier prompt goes on with 41"
    assert found["a again"] == (20, None)


def test_sequences_are_shared_whole_as_a_conversation_grows() -> None:
    first = prompt("turn 1", (*SYSTEM, 40))
    told = tuple(run([first])[0].requests["turn 1"].tokens)
    assert len(told) == 25
    prompts = [
        first,
        prompt("turn 2", (*told, 50), step=8),
        prompt("other turn 2", (*told[:23], 50, 51, 52), step=16),
    ]
    found = lookups(run(prompts, granularity="sequence")[1])
    assert found["turn 2"] == (24, "not aligned to a block")
    assert found["other turn 2"] == (0, "cut to a whole sequence")


def test_an_aborted_request_leaves_no_whole_sequence() -> None:
    prompts = [
        prompt("a", (*SYSTEM, 40), abort_step=4, max_new_tokens=20),
        prompt("b", (*SYSTEM, 40, 41), step=8),
    ]
    assert lookups(run(prompts, granularity="sequence")[1])["b"][0] == 0
    assert lookups(run(prompts, granularity="prompt")[1])["b"][0] == 20


def test_evicted_blocks_are_missed_as_such_unless_they_are_pinned() -> None:
    def found(**how: Any) -> tuple[int, str | None]:
        prompts = [
            prompt("a", (*SYSTEM, 40), **how),
            prompt("later", (41, *SYSTEM), step=8),
            prompt("big", tuple(range(80, 120)), step=16),  # takes 5 new blocks and 6 used ones
            prompt("b", (*SYSTEM, 41), step=24),
        ]
        return lookups(run(prompts, num_blocks=17)[1])["b"]

    assert found() == (0, "evicted")
    assert found(pin=True) == (20, None)
    assert found(retention=1) == (20, None)


def test_a_quarantine_lets_a_pool_preempt_sooner_and_changes_no_token() -> None:
    prompts = [
        prompt(n, tuple(range(30 + 20 * i, 36 + 20 * i)), max_new_tokens=9)
        for i, n in enumerate("ab")
    ]
    roomy, plain = run(prompts, num_blocks=8)
    tight, quarantined = run(prompts, num_blocks=8, reuse="quarantine=2")
    assert not events(plain, RequestPreempted)
    assert events(quarantined, RequestPreempted)
    assert {n: r.tokens for n, r in roomy.requests.items()} == {
        n: r.tokens for n, r in tight.requests.items()
    }


@pytest.mark.parametrize("at", ["free", "allocation"])
def test_scrubbing_changes_no_token(at: str) -> None:
    texts = [(*SYSTEM[:k], 40 + i) for i, k in enumerate([3, 9, 20, 14, 20])]
    prompts = [prompt(f"r{i}", text, step=1 + 4 * i) for i, text in enumerate(texts)]
    plain, _ = run(prompts, num_blocks=10)
    scrubbed, sink = run(prompts, num_blocks=10, scrub="nan", scrub_at=at)
    assert events(sink, BlockScrubbed)
    assert {n: r.tokens for n, r in plain.requests.items()} == {
        n: r.tokens for n, r in scrubbed.requests.items()
    }


@st.composite
def mixes(draw: st.DrawFn) -> tuple[dict[str, Any], list[Prompt]]:
    """A small pool and prompts that share prefixes, under any of the switches."""
    size = draw(st.sampled_from([2, 4]))
    base = draw(st.lists(st.sampled_from([STOP, 40, 41]), min_size=4 * size, max_size=6 * size))
    prompts = []
    for i in range(draw(st.integers(2, 6))):
        arrival = draw(st.integers(1, 10))
        prompts.append(
            prompt(
                f"r{i}",
                (*base[: draw(st.integers(1, len(base)))], *draw(st.lists(st.just(50 + i)))[:size]),
                step=arrival,
                max_new_tokens=draw(st.integers(1, 2 * size)),
                abort_step=draw(st.none() | st.integers(arrival, arrival + 8)),
                tenant=draw(st.sampled_from([None, None, "t"])),
                adapter=draw(st.sampled_from([None, None, None, "lora"])),
                extra_keys=draw(st.sampled_from([(), (), ((0, "x"),), ((size + 1, "x"),)])),
                n=draw(st.sampled_from([1, 1, 1, 2])),
                pin=draw(st.booleans()),
                retention=draw(st.integers(0, 1)),
            )
        )
    switches = {
        "block_size": size,
        "num_blocks": draw(st.integers(14, 20)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "sharing": draw(st.sampled_from(["off", "tenant", "tenant", "global"])),
        "granularity": draw(st.sampled_from(["block", "paragraph", "prompt", "sequence"])),
        "reuse": draw(st.sampled_from(["first-freed", "last-freed", "quarantine=2"])),
        "scrub": draw(st.sampled_from(["none", "zero", "nan"])),
        "scrub_at": draw(st.sampled_from(["free", "allocation"])),
        "steps_in_flight": draw(st.sampled_from([1, 2])),
    }
    return switches, prompts


@settings(max_examples=40, deadline=None)
@given(mixes())
def test_any_mix_is_clean_and_says_what_each_request_says_alone(
    mix: tuple[dict[str, Any], list[Prompt]],
) -> None:
    switches, prompts = mix
    engine, sink = run(prompts, **switches)
    again = run(prompts, **switches)[1]
    assert [e.event for e in again.envelopes[1:]] == [e.event for e in sink.envelopes[1:]]
    alone, _ = run(prompts, block_size=switches["block_size"], num_blocks=200, sharing="off")
    for name, request in engine.requests.items():
        other = alone.requests[name].tokens
        shared = min(len(request.tokens), len(other))  # an abort may have come sooner or later
        assert request.tokens[:shared] == other[:shared]
    assert all(event.key or event.group is None for event in events(sink, BlockShared))


def test_requests_that_may_share_nothing_do_not_wait_for_each_other() -> None:
    prompts = [prompt(name, (*SYSTEM, 40 + i)) for i, name in enumerate("abc")]
    first = {
        unit: events(run(prompts, granularity=unit)[1], StepScheduled)[0].requests
        for unit in ("block", "paragraph", "prompt", "sequence")
    }
    assert first == {
        "block": ("a",),
        "paragraph": ("a",),
        "prompt": ("a", "b", "c"),
        "sequence": ("a", "b", "c"),
    }
