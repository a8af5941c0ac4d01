"""What the simulator says is what the request would say: in any batch, layout, and setting."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.decisions import Reference
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import synthetic_tokens
from kvrewind.recorder.events import DraftVerified
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.sink import NullSink, Sink
from kvrewind.replay.check import check

SWITCHES: tuple[dict[str, Any], ...] = (
    {},
    {"num_blocks": 26},
    {"num_blocks": 28, "host_blocks": 20},
    {"max_num_batched_tokens": 7},
    {"steps_in_flight": 2},
    {"speculation": 3},
    {"layout": "padded-left"},
    {"layout": "padded-right", "attention": "reference", "speculation": 2},
    {"layout": "dense"},
    {"attention": "reference"},
    {"persistent_buffers": True},
    {"scrub": "nan"},
)


class Asked(Reference):
    """Gives the reference answers, to every question."""


def prompts() -> list[Prompt]:
    shared = (3, 4, 5, 3, 4, 5, 3, 4, 9)
    return [
        Prompt(request="a", prompt_tokens=tuple(range(3, 40)), max_new_tokens=30),
        Prompt(request="b", prompt_tokens=shared, max_new_tokens=30, n=3, arrival_step=3),
        Prompt(request="c", prompt_tokens=shared, max_new_tokens=30, arrival_step=9),
        Prompt(
            request="d", prompt_tokens=(*shared, 8), max_new_tokens=20, n=3, temperature=1.0
        ),
    ]  # fmt: skip


def run(
    sink: Sink, *, model: str = "symbolic", policy: Reference | None = None, **switches: Any
) -> Engine:
    config = EngineConfig(**({"block_size": 4} | switches))
    engine = make_engine(open_model(model, config), config, prompts(), sink, policy=policy)
    engine.run(max_steps=2000)
    return engine


def answers(engine: Engine) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(request.tokens[len(request.prompt.prompt_tokens) :])
        for name, request in engine.requests.items()
    }


@pytest.mark.parametrize("model", ["symbolic", "symbolic-windows"])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_every_setting_gives_the_same_answers_and_a_clean_trace(
    model: str, switches: dict[str, Any]
) -> None:
    sink = MemorySink()
    engine = run(sink, model=model, **switches)
    assert answers(engine) == answers(run(NullSink()))
    assert check(sink.envelopes).verdict == "clean"


@pytest.mark.parametrize("model", ["symbolic", "symbolic-windows"])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_arrays_built_at_once_are_those_asked_for_row_by_row(
    model: str, switches: dict[str, Any]
) -> None:
    at_once, asked = MemorySink(), MemorySink()
    run(at_once, model=model, **switches)
    run(asked, model=model, policy=Asked(), **switches)
    events = [[e.event for e in sink.envelopes[1:]] for sink in (at_once, asked)]
    assert events[0] == events[1]


def test_forks_say_what_independent_requests_say_at_temperature_0() -> None:
    said = answers(run(NullSink()))
    assert said["b"] == said["b/1"] == said["b/2"] == said["c"] != said["a"][:30]


def test_samples_differ_by_temperature_and_are_the_same_in_any_batch() -> None:
    said = answers(run(NullSink()))
    assert len({said["d"], said["d/1"], said["d/2"]}) == 3
    assert said == answers(run(NullSink(), max_num_seqs=1))


def test_drafts_are_accepted_in_none_in_part_and_in_all() -> None:
    sink = MemorySink()
    run(sink, speculation=3)
    verified = [e.event for e in sink.envelopes if isinstance(e.event, DraftVerified)]
    accepted = {(len(v.proposed), v.accepted) for v in verified}
    assert {(3, 0), (3, 3)} <= accepted
    assert {(3, 1), (3, 2)} & accepted


def test_a_window_lets_blocks_go_and_the_answer_stays() -> None:
    prompt = Prompt(request="a", prompt_tokens=synthetic_tokens("long", 90), max_new_tokens=30)
    config, held = EngineConfig(block_size=4), list[tuple[int, ...]]()
    full, windowed = (
        make_engine(open_model(model, config), config, [prompt], NullSink())
        for model in ("symbolic", "symbolic-windows")
    )
    full.run()
    windowed.run(
        on_step=lambda: held.append(
            tuple(sum(block.ref_count for block in pool.blocks) for pool in windowed.pools)
        )
    )
    assert answers(full) == answers(windowed)
    assert held[-2] == (30, 5)  # 119 tokens, and the blocks that the last 16 of them lie in


def test_nobody_listening_changes_nothing() -> None:
    unheard, heard = run(NullSink()), run(MemorySink())
    assert answers(unheard) == answers(heard)
    assert unheard.step_number == heard.step_number
