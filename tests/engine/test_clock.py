"""The wall clock waits and the simulated one jumps; a step costs what its model says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.engine.clock import SimulatedClock, StepCost, StepWork, WallClock
from kvrewind.recorder.errors import BadInput

COST = StepCost(weights_s=0.010, token_s=0.001, context_token_s=0.00001, host_s=0.002)


class Machine:
    """A machine whose time passes only while somebody sleeps, and less than was asked for."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += max(seconds / 2, 0.25)


def test_the_wall_clock_counts_from_the_beginning_of_the_run() -> None:
    machine = Machine()
    clock = WallClock(machine.monotonic, machine.sleep)
    machine.time += 1.5
    assert clock.now() == 1.5


def test_the_wall_clock_sleeps_until_it_is_time() -> None:
    machine = Machine()
    clock = WallClock(machine.monotonic, machine.sleep)
    clock.wait_until(2.0)
    assert clock.now() >= 2.0
    assert machine.slept[0] == 2.0
    machine.slept.clear()
    clock.wait_until(1.0)
    assert machine.slept == []


def test_a_step_does_not_move_the_wall_clock() -> None:
    machine = Machine()
    clock = WallClock(machine.monotonic, machine.sleep)
    clock.step_done(StepWork(tokens=5, context=5))
    assert clock.now() == 0.0


def test_the_simulated_clock_jumps_and_never_back() -> None:
    clock = SimulatedClock(COST)
    clock.wait_until(2.0)
    assert clock.now() == 2.0
    clock.wait_until(1.0)
    assert clock.now() == 2.0


def test_few_tokens_cost_the_weights_and_many_their_arithmetic() -> None:
    assert COST.device_s(StepWork(tokens=3, context=100)) == pytest.approx(0.010 + 0.001)
    assert COST.device_s(StepWork(tokens=50, context=100)) == pytest.approx(0.050 + 0.001)
    assert COST.device_s(StepWork()) == 0.0


def test_host_and_device_add_up_unless_steps_overlap() -> None:
    one, two = SimulatedClock(COST), SimulatedClock(COST, steps_in_flight=2)
    for clock in (one, two):
        clock.step_done(StepWork(tokens=3, context=100))
        clock.step_done(StepWork())
    assert one.now() == pytest.approx(0.011 + 0.002 + 0.002)
    assert two.now() == pytest.approx(0.011 + 0.002)


def test_the_work_of_a_step_is_that_of_its_rows() -> None:
    class Row:
        def __init__(self, query_len: int, seq_len: int) -> None:
            self.query_len = query_len
            self.seq_len = seq_len

    assert StepWork.of([Row(7, 9), Row(1, 30)]) == StepWork(tokens=8, context=39)
    assert StepWork.of([]) == StepWork()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=8))
def test_more_work_never_takes_less_time(steps: list[tuple[int, int]]) -> None:
    clock, before = SimulatedClock(COST), 0.0
    for tokens, context in steps:
        clock.step_done(StepWork(tokens, context))
        assert clock.now() >= before + COST.host_s
        before = clock.now()
        assert COST.device_s(StepWork(tokens + 1, context)) >= COST.device_s(
            StepWork(tokens, context)
        )


def test_the_defaults_are_those_worked_out_for_llama_3_8b_on_an_a100() -> None:
    parameters, bandwidth, peak = 8.03e9, 2039e9, 312e12
    cost = StepCost()
    assert cost.weights_s == pytest.approx(parameters * 2 / bandwidth, rel=0.01)
    assert cost.token_s == pytest.approx(parameters * 2 / (0.5 * peak), rel=0.01)
    assert cost.context_token_s == pytest.approx(2 * 32 * 8 * 128 * 2 / bandwidth, rel=0.01)


@pytest.mark.parametrize("wrong", [{"token_s": -1}, {"host_s": float("nan")}, {"weights_s": 1e9}])
def test_a_cost_that_is_no_time_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))} must be from 0"):
        StepCost(**wrong)


def test_steps_take_some_time() -> None:
    with pytest.raises(BadInput, match="can't both be 0"):
        StepCost(weights_s=0, host_s=0)
