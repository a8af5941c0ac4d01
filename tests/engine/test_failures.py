"""A step that raises ends its own requests, says why, and leaves the pool as sound as before."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from failing import MOMENTS, FailingRunner, When
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt, Status
from kvrewind.recorder.events import (
    BlockRegistered,
    PrefixLookedUp,
    RequestFinished,
    StepDispatched,
    StepScheduled,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State
from soundness import assert_sound
from test_fold import engine_summary

MODEL = SymbolicModel()

BLAMED = re.compile(r"step (\d+) raised DeviceLost: device lost in step \1")


def random_prompts(random: Random) -> list[Prompt]:
    """Some share prefixes, some have several samples, some come late or are aborted."""
    base = [random.randrange(3, 90) for _ in range(24)]
    prompts = []
    for i in range(random.randrange(2, 7)):
        own = [random.randrange(3, 90) for _ in range(random.randrange(8))]
        arrival = random.choice([1, 1, 2, 5, 9])
        prompts.append(
            Prompt(
                request=f"r{i}",
                prompt_tokens=(*base[: random.randrange(1, 25)], *own),
                max_new_tokens=random.randrange(1, 12),
                arrival_step=arrival,
                abort_step=arrival + random.randrange(9) if random.random() < 0.1 else None,
                n=random.choice([1, 1, 1, 3]),
                priority=random.choice([0, 0, 1]),
                ignore_eos=random.random() < 0.8,
            )
        )
    return prompts


def random_switches(random: Random) -> dict[str, Any]:
    """Of all that changes when blocks are taken, written, shared, moved or given back."""
    two = random.random() < 0.4
    layout = random.choice(["packed", "packed", "padded-left", "padded-right", "dense"])
    return {
        "block_size": 4,
        "num_blocks": random.choice([16, 16, 20, 60]),
        "max_num_seqs": random.choice([2, 4, 8]),
        "max_num_batched_tokens": random.choice([6, 16, 64]),
        "continuous_batching": random.random() < 0.8,
        "chunked_prefill": random.random() < 0.8,
        "preemption": random.random() < 0.8,
        "steps_in_flight": 2 if two else 1,
        "speculation": 0 if two else random.choice([0, 0, 3]),
        "prefix_cache": random.random() < 0.8,
        "reuse": random.choice(["first-freed", "last-freed", "quarantine=2"]),
        "scrub": random.choice(["none", "zero", "nan"]),
        "scrub_at": random.choice(["free", "allocation"]),
        "host_blocks": random.choice([0, 0, 8]),
        "transfer_steps": random.choice([1, 3]),
        "attention": random.choice(["fast", "reference"]),
        "sharing": random.choice(["off", "tenant", "global"]),
        "granularity": random.choice(["block", "block", "prompt", "sequence"]),
        "persistent_buffers": layout == "packed" and random.random() < 0.5,
        "layout": layout,
    }


def random_failures(random: Random) -> dict[int, When]:
    return {step: random.choice(MOMENTS) for step in range(1, 60) if random.random() < 0.12}


def run(engine: Engine, sink: MemorySink) -> None:
    """To its end, comparing the engine with the fold of its events after each step."""
    state, folded = State(), 0
    while engine.has_work:
        assert engine.step_number < 300, "it doesn't end"
        engine.step()
        for envelope in sink.envelopes[folded:]:
            apply(state, envelope)
        folded = len(sink.envelopes)
        assert state.summary() == engine_summary(engine)
    engine.end()


def failing(
    prompts: list[Prompt], failures: dict[int, When], **switches: Any
) -> tuple[Engine, MemorySink]:
    config = EngineConfig(**({"block_size": 4} | switches))
    sink = MemorySink()
    runner = FailingRunner(MODEL.runner(config), failures)
    engine = make_engine(MODEL, config, prompts, sink, runner=runner)
    run(engine, sink)
    assert runner.failed == failures
    assert_sound(engine, sink)
    return engine, sink


def told_errors(sink: MemorySink) -> dict[str, str | None]:
    finished = [e.event for e in sink.envelopes if isinstance(e.event, RequestFinished)]
    return {event.request: event.message for event in finished if event.reason == "error"}


def rows_of(sink: MemorySink, step: int) -> tuple[str, ...]:
    return next(
        e.event.requests
        for e in sink.envelopes
        if isinstance(e.event, StepScheduled) and e.step == step
    )


def asked(name: str, first: int = 3, **how: Any) -> Prompt:
    tokens = tuple(range(first, first + 10))
    return Prompt(
        request=name, prompt_tokens=tokens, **({"max_new_tokens": 5, "ignore_eos": True} | how)
    )


@pytest.mark.parametrize("when", MOMENTS)
def test_a_failed_step_ends_those_who_had_a_row_in_it(when: When) -> None:
    prompts = [asked("a"), asked("b", 30), asked("c", 50)]
    engine, sink = failing(prompts, {3: when}, max_num_seqs=2)
    why = "step 3 raised DeviceLost: device lost in step 3"
    assert told_errors(sink) == {"a": why, "b": why}
    assert {n: (r.finish_reason, r.error) for n, r in engine.requests.items()} == {
        "a": ("error", why),
        "b": ("error", why),
        "c": ("length", None),
    }
    assert [engine.requests[n].num_sampled for n in "abc"] == [2, 2, 5]


@pytest.mark.parametrize("when", MOMENTS)
def test_what_a_failed_step_computed_is_never_shared(when: When) -> None:
    """The next with the same prompt computes it anew; what was published before is still good."""
    same = [asked("a", max_new_tokens=1), asked("b", arrival_step=2), asked("c", arrival_step=3)]
    longer = [
        Prompt(request=name, prompt_tokens=tuple(range(3, 20)), max_new_tokens=2, arrival_step=step)
        for name, step in (("d", 9), ("e", 10))
    ]
    _, sink = failing([*same, *longer], {9: when})
    hits = {
        e.event.request: e.event.hit_tokens
        for e in sink.envelopes
        if isinstance(e.event, PrefixLookedUp)
    }
    assert hits == {"a": 0, "b": 8, "c": 8, "d": 8, "e": 8}
    assert told_errors(sink).keys() == {"d"}
    assert not [e for e in sink.envelopes if isinstance(e.event, BlockRegistered) and e.step == 9]


def test_samples_of_one_prompt_fail_with_the_step_that_forks_them() -> None:
    engine, sink = failing([asked("a", n=3), asked("b", 30)], {2: "after writing some"})
    assert told_errors(sink).keys() == {"a", "a/1", "a/2", "b"}
    engine, sink = failing([asked("a", n=3), asked("b", 30, arrival_step=3)], {1: "before writing"})
    assert told_errors(sink).keys() == {"a", "a/1", "a/2"}
    assert engine.requests["b"].num_sampled == 5


def test_samples_fail_with_an_earlier_piece_of_their_prompt() -> None:
    """The step that forks them is on its way when the one that computed the first piece fails."""
    engine, sink = failing(
        [asked("a", n=3), asked("b", 30, arrival_step=3)],
        {1: "before writing"},
        steps_in_flight=2,
        max_num_batched_tokens=8,
    )
    assert told_errors(sink).keys() == {"a", "a/1", "a/2"}
    assert rows_of(sink, 2) == ("a",)
    assert engine.requests["b"].num_sampled == 5


def test_the_next_step_may_be_on_its_way_when_one_fails() -> None:
    """Its rows of requests that ended are for nobody; the others' are good."""
    prompts = [asked("a"), asked("b", 30, arrival_step=3)]
    engine, sink = failing(prompts, {2: "after writing some"}, steps_in_flight=2)
    assert told_errors(sink).keys() == {"a"}
    dispatched = [e.step for e in sink.envelopes if isinstance(e.event, StepDispatched)]
    ended = next(i for i, e in enumerate(sink.envelopes) if isinstance(e.event, RequestFinished))
    assert max(s for s in dispatched if s <= sink.envelopes[ended].step) == 3
    assert rows_of(sink, 3) == ("a", "b")
    assert engine.requests["b"].num_sampled == 5


def test_every_step_may_fail() -> None:
    engine, sink = failing(
        [asked("a"), asked("b", 30, arrival_step=2)], {1: MOMENTS[0], 2: MOMENTS[2]}
    )
    assert told_errors(sink).keys() == {"a", "b"}
    assert engine.step_number == 2


@pytest.mark.parametrize("seed", range(200))
def test_random_failures_end_their_requests_and_nobody_elses(seed: int) -> None:
    random = Random(seed)
    prompts, switches = random_prompts(random), random_switches(random)
    config = EngineConfig(**switches)
    alone = make_engine(MODEL, config, prompts, MemorySink())
    alone.run(max_steps=300)
    assert not [r.error for r in alone.requests.values() if r.error]

    sink = MemorySink()
    runner = FailingRunner(MODEL.runner(config), random_failures(random))
    engine = make_engine(MODEL, config, prompts, sink, runner=runner)
    run(engine, sink)

    assert_sound(engine, sink)
    errors = told_errors(sink)
    in_failed_steps = {name for step in runner.failed for name in rows_of(sink, step)}
    assert errors.keys() <= {
        name for name in engine.requests if {name, parent_of(name)} & in_failed_steps
    }
    assert bool(errors) == bool(runner.failed) or config.steps_in_flight == 2
    for name, request in engine.requests.items():
        assert request.status is Status.FINISHED
        assert request.error == errors.get(name)
        assert request.error is None or BLAMED.fullmatch(request.error)
        said, expected = request.tokens, alone.requests[name].tokens
        both = min(len(said), len(expected))  # an abort may come sooner or later
        assert said[:both] == expected[:both]


def parent_of(name: str) -> str:
    return name.partition("/")[0]
