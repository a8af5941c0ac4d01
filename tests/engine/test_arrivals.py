"""Prompts come when they are due: by step, or by the clock."""

from __future__ import annotations

import pytest
from kvrewind.engine.admission import PromptRefused
from kvrewind.engine.arrivals import Arrivals
from kvrewind.engine.clock import SimulatedClock, StepCost, WallClock
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import Envelope, RequestAdded, StepCompleted
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.recording import Recording
from kvrewind.replay.reexecute import Reexecutor, first_divergence

MODEL = SymbolicModel()
COST = StepCost(weights_s=0.3, token_s=0.0, context_token_s=0.0, host_s=0.2)
"""Half a second for any step with rows."""


def prompt(name: str, seconds: float | None = None, step: int = 1, new: int = 3) -> Prompt:
    return Prompt(
        request=name,
        prompt_tokens=tuple(range(20, 26)),
        max_new_tokens=new,
        arrival_s=seconds,
        arrival_step=step,
        ignore_eos=True,
    )


def run(*prompts: Prompt, config: EngineConfig | None = None) -> tuple[Engine, MemorySink]:
    sink, clock = MemorySink(), SimulatedClock(COST)
    engine = make_engine(MODEL, config or EngineConfig(), prompts, sink, clock=clock)
    engine.run()
    return engine, sink


def added(envelopes: list[Envelope]) -> list[tuple[int, str]]:
    return [(e.step, e.event.request) for e in envelopes if isinstance(e.event, RequestAdded)]


def test_what_is_due_comes_in_the_order_handed_in() -> None:
    clock = SimulatedClock(COST)
    arrivals = Arrivals(clock)
    arrivals.add([prompt("late", 2.0), prompt("a", step=2), prompt("b", 0.5), prompt("c", 0.25)])
    arrivals.add([prompt("d", step=1)])
    assert [p.request for p in arrivals.take_due(1)] == ["d"]
    clock.wait_until(0.5)
    assert [p.request for p in arrivals.take_due(2)] == ["a", "b", "c"]
    assert [p.request for p in arrivals] == ["late"]


def test_a_request_is_taken_in_by_the_first_step_that_begins_at_its_time() -> None:
    """Steps begin at 0, 0.5, 1.0, ...: what comes at 0.6 is taken in by the third."""
    _, sink = run(prompt("a", 0.0, new=5), prompt("b", 0.6), prompt("c", 0.5))
    assert added(sink.envelopes) == [(1, "a"), (2, "c"), (3, "b")]


def test_with_nobody_at_work_time_jumps_and_steps_do_not() -> None:
    engine, sink = run(prompt("a", 0.0, new=2), prompt("b", 1000.0, new=2))
    assert added(sink.envelopes) == [(1, "a"), (3, "b")]
    assert engine.step_number == 4


def test_steps_without_anybody_pass_at_once() -> None:
    _, sink = run(prompt("a", step=40), prompt("b", 0.6, new=1))
    assert added(sink.envelopes) == [(40, "a"), (42, "b")]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_trace_of_timed_arrivals_is_replayed_by_their_steps(steps_in_flight: int) -> None:
    config = EngineConfig(steps_in_flight=steps_in_flight)
    _, sink = run(*(prompt(f"r{i}", 0.7 * i) for i in range(6)), config=config)
    assert len({step for step, _ in added(sink.envelopes)}) > 3
    again = Reexecutor(Recording.of(sink.envelopes), MODEL).run()
    assert first_divergence(sink.envelopes, again.envelopes) is None


def test_the_wall_clock_is_slept_on_only_while_nobody_is_at_work() -> None:
    asleep: list[tuple[float, int]] = []
    time = [0.0]
    sink = MemorySink()

    def sleep(seconds: float) -> None:
        asleep.append((seconds, sum(isinstance(e.event, StepCompleted) for e in sink.envelopes)))
        time[0] += seconds

    clock = WallClock(lambda: time[0], sleep)
    make_engine(
        MODEL, EngineConfig(), [prompt("a", 1.5), prompt("b", 4.0)], sink, clock=clock
    ).run()
    assert asleep == [(1.5, 0), (2.5, 3)]


def test_seconds_take_a_clock() -> None:
    with pytest.raises(PromptRefused, match="'a' arrives in seconds, but the engine has no clock"):
        make_engine(MODEL, EngineConfig(), [prompt("a", 1.0)], MemorySink())
