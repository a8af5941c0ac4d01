"""An abort in any phase ends the request, gives its blocks back, and disturbs nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from kvrewind.engine.admission import UnknownRequest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt, Request, Status
from kvrewind.recorder.events import AbortRequested, Event, RequestFinished, TransferStarted
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.recording import Recording
from kvrewind.replay.reexecute import Reexecutor, first_divergence
from soundness import assert_sound

MODEL = SymbolicModel()

Phase = Callable[[Engine, Request | None], bool]


def waiting(engine: Engine, r: Request | None) -> bool:
    return r is not None and r.status is Status.WAITING and engine.step_number > 0


def in_mid_chunk(engine: Engine, r: Request | None) -> bool:
    return r is not None and r.status is Status.RUNNING and 0 < r.computed < r.prefill_until


def computed_and_silent(engine: Engine, r: Request | None) -> bool:
    """Nothing sampled yet, or only just: the step that ends its prompt."""
    return r is not None and r.status is Status.RUNNING and r.computed >= r.prefill_until


def decoding(engine: Engine, r: Request | None) -> bool:
    return r is not None and r.status is Status.RUNNING and r.num_sampled == 3


def preempted(engine: Engine, r: Request | None) -> bool:
    return r is not None and r.status is Status.PREEMPTED


def running_again(engine: Engine, r: Request | None) -> bool:
    return r is not None and r.status is Status.RUNNING and r.admissions == 2


def not_yet_taken_in(engine: Engine, r: Request | None) -> bool:
    return r is None


def before_its_fork(engine: Engine, r: Request | None) -> bool:
    parent = engine.requests.get("a")
    return parent is not None and bool(parent.children) and engine.step_number > 0


def after_its_fork(engine: Engine, r: Request | None) -> bool:
    return r is not None and engine.requests["a"].num_sampled >= 2 and r.status is Status.RUNNING


def without_a_seat(engine: Engine, r: Request | None) -> bool:
    """A sample that found no seat beside its siblings and waits as a request of its own."""
    return waiting(engine, r) and not before_its_fork(engine, r)


NARROW = {"num_blocks": 14}  # three prompts fit, their answers do not: somebody is preempted
CHUNKED = {"max_num_batched_tokens": 8}

PHASES: tuple[tuple[Phase, str, dict[str, Any]], ...] = (
    (not_yet_taken_in, "late", {}),
    (waiting, "c", {"max_num_seqs": 1}),
    (in_mid_chunk, "a", CHUNKED),
    (in_mid_chunk, "b", CHUNKED),
    (computed_and_silent, "a", {}),
    (computed_and_silent, "b", CHUNKED),
    (decoding, "a", {}),
    (decoding, "b", CHUNKED),
    (preempted, "c", NARROW),
    (running_again, "c", NARROW),
    (before_its_fork, "a", {"n": 3} | CHUNKED),
    (before_its_fork, "a/1", {"n": 3} | CHUNKED),
    (before_its_fork, "a/2", {"n": 3} | CHUNKED),
    (after_its_fork, "a", {"n": 3}),
    (after_its_fork, "a/1", {"n": 3}),
    (after_its_fork, "a/2", {"n": 3}),
    (without_a_seat, "a/2", {"n": 3, "max_num_seqs": 2}),
)

SWITCHES: tuple[dict[str, Any], ...] = (
    {},
    {"steps_in_flight": 2},
    {"speculation": 3},
    {"prefix_cache": False},
    {"continuous_batching": False},
    {"persistent_buffers": True},
    {"layout": "padded-left"},
    {"layout": "dense"},
    {"reuse": "quarantine=2", "scrub": "nan"},
)


def prompts(n: int = 1) -> list[Prompt]:
    """Three that share their first block, and one that comes late."""
    tokens = {
        "a": range(3, 20),
        "b": (*range(3, 9), *range(40, 54)),
        "c": (*range(3, 9), *range(60, 69)),
    }
    asked = [
        Prompt(
            request=name,
            prompt_tokens=tuple(tokens[name]),
            max_new_tokens=7,
            ignore_eos=True,
            n=n if name == "a" else 1,
        )
        for name in tokens
    ]
    late = Prompt(request="late", prompt_tokens=(3, 4, 5), max_new_tokens=2, arrival_step=9)
    return [*asked, late]


def make(sink: MemorySink, n: int = 1, **switches: Any) -> Engine:
    config = EngineConfig(**({"block_size": 4, "num_blocks": 60} | switches))
    return make_engine(MODEL, config, prompts(n), sink)


def finish(engine: Engine) -> None:
    engine.run(max_steps=300)


@cache
def undisturbed(switches: str) -> dict[str, list[int]]:
    """What everybody says when nobody is aborted."""
    engine = make(MemorySink(), **json.loads(switches))
    finish(engine)
    return {name: request.tokens for name, request in engine.requests.items()}


def told(sink: MemorySink, kind: type[Event]) -> list[Any]:
    return [e.event for e in sink.envelopes if isinstance(e.event, kind)]


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s)) or "default")
@pytest.mark.parametrize(
    ("phase", "name", "needs"), PHASES, ids=[f"{p.__name__}-{name}" for p, name, _ in PHASES]
)
def test_an_abort_in_any_phase_disturbs_nobody_else(
    phase: Phase, name: str, needs: dict[str, Any], switches: dict[str, Any]
) -> None:
    expected = undisturbed(json.dumps(switches | needs))
    sink = MemorySink()
    engine = make(sink, **(switches | needs))
    while not phase(engine, engine.requests.get(name)):
        if not engine.has_work:
            pytest.fail("these switches never bring it into this phase")
        engine.step()
    engine.abort(name)
    finish(engine)
    assert_sound(engine, sink)
    ended = {e.request: e.reason for e in told(sink, RequestFinished)}
    assert ended.pop(name) == "aborted"
    assert "aborted" not in ended.values()
    assert ended.keys() == expected.keys() - {name}
    for other in ended:
        assert engine.requests[other].tokens == expected[other]
    length = len(engine.requests[name].tokens)
    assert engine.requests[name].tokens == expected[name][:length]
    rerun = Reexecutor(Recording.of(sink.envelopes), MODEL).run()
    assert first_divergence(sink.envelopes, rerun.envelopes, bits=True) is None


@pytest.mark.parametrize("waited", [0, 1, 2])
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_an_abort_while_host_memory_is_loaded_disturbs_nobody_else(
    steps_in_flight: int, waited: int
) -> None:
    """The next with the same prompt loads it again, into blocks of its own."""
    first = Prompt(request="a", prompt_tokens=tuple(range(3, 24)), max_new_tokens=2)
    others = [
        replace(first, request=f"o{i}", prompt_tokens=tuple(range(30 + 21 * i, 51 + 21 * i)))
        for i in range(3)
    ]
    asked = [
        first,
        *(replace(other, arrival_step=10 + 8 * i) for i, other in enumerate(others)),
        replace(first, request="b", arrival_step=40),
        replace(first, request="c", arrival_step=42),
    ]
    config = EngineConfig(
        block_size=4,
        num_blocks=12,
        host_blocks=30,
        transfer_steps=4,
        steps_in_flight=steps_in_flight,
    )
    sink = MemorySink()
    engine = make_engine(MODEL, config, asked, sink)
    while engine.requests.get("b") is None or engine.requests["b"].status is not Status.LOADING:
        assert engine.has_work, "b never loads"
        engine.advance()
    for _ in range(waited):
        engine.step()
    assert engine.requests["b"].status is Status.LOADING
    engine.abort("b")
    finish(engine)
    assert_sound(engine, sink)
    assert {n: r.finish_reason for n, r in engine.requests.items()}["b"] == "aborted"
    assert engine.requests["c"].tokens == engine.requests["a"].tokens
    loads = [e for e in told(sink, TransferStarted) if e.direction == "load"]
    assert [load.request for load in loads] == ["b", "c"]
    rerun = Reexecutor(Recording.of(sink.envelopes), MODEL).run()
    assert first_divergence(sink.envelopes, rerun.envelopes, bits=True) is None


def test_an_abort_of_nobody_is_refused() -> None:
    engine = make(MemorySink())
    with pytest.raises(UnknownRequest, match="no request 'nobody'"):
        engine.abort("nobody")
    engine.abort("late")  # handed in, and not yet taken in


def test_an_abort_of_one_that_has_ended_is_no_input_of_the_run() -> None:
    sink = MemorySink()
    engine = make(sink)
    while engine.requests.get("a") is None or not engine.requests["a"].finish_reason:
        engine.step()
    engine.abort("a")
    finish(engine)
    assert not told(sink, AbortRequested)
    assert engine.requests["a"].finish_reason == "length"


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_second_abort_does_nothing(again: int) -> None:
    """At once, after the step that ended it, or by the prompt's own `abort_step`."""
    sink = MemorySink()
    asked = [replace(p, abort_step=6 if again == 2 else None) for p in prompts()]
    engine = make_engine(MODEL, EngineConfig(block_size=4), asked[:1], sink)
    engine.step()
    engine.abort("a")
    if again == 0:
        engine.abort("a")
    engine.step()
    if again == 1:
        engine.abort("a")
    engine.add([replace(asked[1], max_new_tokens=9, abort_step=None)])
    finish(engine)
    assert engine.step_number > 6
    assert [e.request for e in told(sink, AbortRequested)] == ["a"]
    assert_sound(engine, sink)


def test_it_does_not_matter_in_which_order_aborts_are_asked_for() -> None:
    streams = []
    for order in ("abc", "cab"):
        sink = MemorySink()
        engine = make(sink)
        engine.step()
        for name in order:
            engine.abort(name)
        finish(engine)
        assert [e.request for e in told(sink, AbortRequested)] == ["a", "b", "c"]
        streams.append(sink.envelopes[1:])
    assert first_divergence(*streams) is None
