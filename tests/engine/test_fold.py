"""Folding the events after any step equals the engine's own state, broken or not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.block_pool import BlockPool
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.faults.registry import FAULTS, with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt, Status
from kvrewind.engine.workload import default_workload
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State, part_of

MODEL = SymbolicModel()


def engine_summary(engine: Engine) -> dict[str, Any]:
    """The engine's own state in the words of `State.summary`."""
    live = {n: r for n, r in engine.requests.items() if r.status is not Status.FINISHED}
    parts: dict[str, Any] = {"tokens": {n: tuple(r.tokens) for n, r in live.items()}}
    for group, pool in enumerate(engine.pools):
        tables = {name: request.tables[group].entries() for name, request in live.items()}
        parts |= {part_of(n, group): v for n, v in pool_summary(pool, tables).items()}
    return parts


def pool_summary(pool: BlockPool, tables: dict[str, tuple[int | None, ...]]) -> dict[str, Any]:
    index: dict[str, list[int]] = {}
    for entry in pool.cache.entries():
        index.setdefault(entry.key, []).append(entry.block)
    return {
        "blocks": tuple(
            (b.generation, b.ref_count, tuple(sorted(b.holders)), b.entry.key if b.entry else None)
            for b in pool.blocks
        ),
        "free": pool.free_queue(),
        "tables": {name: entries for name, entries in tables.items() if entries},
        "index": {key: tuple(sorted(blocks)) for key, blocks in index.items()},
    }


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
