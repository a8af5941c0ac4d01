"""Any combination of the engine's mechanisms: no row sees what is not its own, the checks are
silent, the fold is the engine's own state after every step, and the recording runs again event by
event."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from kvrewind.engine.config import BadSwitch
from kvrewind.engine.engine import DidNotFinish
from kvrewind.engine.faults.base import Fault
from kvrewind.engine.faults.registry import FAULTS, with_implied
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.recording import Recording
from kvrewind.replay.reducer import apply
from kvrewind.replay.reexecute import Reexecutor, first_divergence
from kvrewind.replay.state import State
from whole_engine import Mix, engine_of, mixes, own_summary

MOST_STEPS = 300


@settings(max_examples=60, deadline=None)
@given(mixes())
def test_any_mix_is_clean_folds_to_the_engines_state_and_runs_again(mix: Mix) -> None:
    sink, state = MemorySink(), State()
    engine, runner = engine_of(mix, sink)

    def compare() -> None:
        for envelope in sink.envelopes[0 if state.seq is None else state.seq + 1 :]:
            apply(state, envelope)
        assert state.summary() == own_summary(engine)

    engine.run(MOST_STEPS, on_step=compare)
    assert runner.wrong == []
    report = check(sink.envelopes)
    assert report.findings == ()
    assert report.missing == ()
    again = Reexecutor(Recording.of(sink.envelopes), mix.model).run()
    assert first_divergence(sink.envelopes, again.envelopes, bits=True) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@settings(max_examples=10, deadline=None)
@given(mix=mixes())
def test_in_any_mix_one_planted_fault_is_the_class_of_every_root(fault: Fault, mix: Mix) -> None:
    try:
        config = with_implied(replace(mix.config, faults=(fault.name,)))
    except BadSwitch:
        return
    sink, broken = MemorySink(), replace(mix, config=config)
    with suppress(DidNotFinish):
        engine_of(broken, sink)[0].run(MOST_STEPS)
    report = check(sink.envelopes)
    assert {root.fault_class for root in report.roots} <= {fault.fault_class}
