"""Any combination of the engine's mechanisms: the checks are silent, the fold is the engine's own
state after every step, and the recording runs again event by event."""

from __future__ import annotations

from hypothesis import given, settings
from kvrewind.recorder.events import RunEnded
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.recording import Recording
from kvrewind.replay.reducer import apply
from kvrewind.replay.reexecute import Reexecutor, first_divergence
from kvrewind.replay.state import State
from whole_engine import Babbler, Mix, engine_of, mixes, own_summary

MOST_STEPS = 300


@settings(max_examples=120, deadline=None)
@given(mixes())
def test_any_mix_is_clean_folds_to_the_engines_state_and_runs_again(mix: Mix) -> None:
    sink, state, folded = MemorySink(), State(), 0
    engine = engine_of(mix, sink)
    while engine.has_work:
        assert engine.step_number < MOST_STEPS, "the engine makes no headway"
        engine.step()
        for envelope in sink.envelopes[folded:]:
            apply(state, envelope)
        folded = len(sink.envelopes)
        assert state.summary() == own_summary(engine)
    sink.emit(RunEnded(reason="completed"), engine.step_number)
    report = check(sink.envelopes)
    assert report.findings == ()
    assert report.missing == ()
    again = Reexecutor(Recording.of(sink.envelopes), Babbler(mix.windows, mix.fails_in)).run()
    assert first_divergence(sink.envelopes, again.envelopes, bits=True) is None
