"""Folding the events after any step equals the engine's own state, broken or not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import FAULTS, with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State
from summaries import engine_summary

MODEL = SymbolicModel()


def steps_where_fold_differs(config: EngineConfig, prompts: list[Prompt]) -> list[str]:
    sink, state, differences = MemorySink(), State(), []
    engine = make_engine(MODEL, config, prompts, sink)
    folded = 0
    while engine.has_work and engine.step_number < 400:
        engine.step()
        for envelope in sink.envelopes[folded:]:
            apply(state, envelope)
        folded = len(sink.envelopes)
        own, fold = engine_summary(engine), state.summary()
        differences += [f"{engine.step_number}: {part}" for part in own if own[part] != fold[part]]
    assert folded > 50, "the run did nothing"
    return differences


@pytest.mark.parametrize("fault", [None, *(fault.name for fault in FAULTS)])
def test_fold_equals_engine_state_after_every_step(fault: str | None) -> None:
    workload = default_workload()
    config = with_implied(EngineConfig(**workload.switches, faults=(fault,) if fault else ()))
    prompts = [spec.tokenized(MODEL.encode, 32) for spec in workload.specs]
    assert steps_where_fold_differs(config, prompts) == []


@st.composite
def mixes(draw: st.DrawFn) -> tuple[EngineConfig, list[Prompt]]:
    """A small pool, prompts that share prefixes, late arrivals, aborts, and maybe a fault."""
    size = draw(st.sampled_from([2, 4, 8]))
    base = draw(st.lists(st.integers(3, 9), min_size=4 * size, max_size=4 * size))
    prompts = []
    for i in range(draw(st.integers(2, 6))):
        kept = draw(st.integers(1, len(base)))
        own = draw(st.lists(st.integers(3, 9), max_size=2 * size))
        arrival = draw(st.integers(1, 8))
        prompts.append(
            Prompt(
                request=f"r{i}",
                prompt_tokens=(*base[:kept], *own),
                max_new_tokens=draw(st.integers(1, 2 * size)),
                arrival_step=arrival,
                abort_step=draw(st.none() | st.integers(arrival, arrival + 8)),
                tenant=draw(st.sampled_from([None, "t"])),
                ignore_eos=True,
            )
        )
    faults = draw(st.lists(st.sampled_from([f.name for f in FAULTS]), max_size=2, unique=True))
    config = with_implied(
        EngineConfig(
            block_size=size,
            num_blocks=draw(st.integers(8, 16)),
            max_num_seqs=draw(st.integers(1, 6)),
            max_num_batched_tokens=draw(st.sampled_from([4, 16, 64])),
            prefix_cache=draw(st.booleans()),
            continuous_batching=draw(st.booleans()),
            attention=draw(st.sampled_from(["fast", "reference"])),
            faults=tuple(faults),
        )
    )
    return config, prompts


@settings(max_examples=60, deadline=None)
@given(mixes())
def test_fold_equals_engine_state_in_any_mix(mix: tuple[EngineConfig, list[Prompt]]) -> None:
    config, prompts = mix
    sink, state = MemorySink(), State()
    engine = make_engine(MODEL, config, prompts, sink)
    folded = 0
    while engine.has_work and engine.step_number < 120:
        engine.step()
        for envelope in sink.envelopes[folded:]:
            apply(state, envelope)
        folded = len(sink.envelopes)
        assert state.summary() == engine_summary(engine)
