"""The memory account of recorded runs, and of any events at all, against the reducer's fold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.events import (
    BlockCopied,
    DecisionMade,
    Envelope,
    RequestRevised,
    SlotsWritten,
    StepCompleted,
    StepScheduled,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.memory_account import MemoryAccount
from kvrewind.replay.memory_report import Ask, Memory
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State
from recorded import recorded
from strategies import traces


def account(events: Iterable[Envelope], **ask: int) -> Memory:
    counted = MemoryAccount()
    for envelope in events:
        counted.see(envelope)
    return counted.report(Ask(**ask))


_IN_ITS_OWN_WAY = (BlockCopied, DecisionMade, RequestRevised)
"""A copy is a write here whatever its source; a finished request is forgotten, not revised."""


def totals(envelopes: Iterable[Envelope]) -> dict[str, list[int]]:
    """Held, cached, spare blocks and unwritten slots of each step, by folding everything."""
    state, steps = State(), dict[int, list[int]]()
    for envelope in envelopes:
        apply(state, envelope)
        event = envelope.event
        computed = isinstance(event, SlotsWritten) and event.write in (
            "prefill", "decode", "draft",
        )  # fmt: skip
        if computed or isinstance(event, StepScheduled | StepCompleted):
            steps[envelope.step] = now(state)
    names = ("held", "cached", "saved", "unwritten")
    return {name: [step[i] for step in steps.values()] for i, name in enumerate(names)}


def now(state: State) -> list[int]:
    held = cached = spare = unwritten = 0
    for group, pool in state.pools.items():
        for number, block in pool.blocks.items():
            if number in pool.sentinels:
                continue
            held += bool(block.holders)
            cached += bool(block.keys) and not block.holders
            spare += max(len(block.holders) - 1, 0)
            if block.holders:
                unwritten += sum(not state.is_written(group, s) for s in pool.slots_of(number))
    return [held, cached, spare, unwritten]


def agree(memory: Memory, envelopes: Iterable[Envelope]) -> None:
    expected = totals(envelopes)
    assert memory.steps == len(expected["held"])
    for level, name in (
        (memory.held, "held"),
        (memory.cached, "cached"),
        (memory.saved, "saved"),
    ):
        if level is not None:
            assert level.mean_blocks == sum(expected[name]) / memory.steps
            assert level.peak_blocks == max(expected[name])
    if memory.fragmentation is not None:
        assert memory.fragmentation.mean_slots == sum(expected["unwritten"]) / memory.steps


@pytest.mark.parametrize("faults", [(), ("free-while-shared",), ("table-keeps-freed",)])
def test_a_recorded_run_counts_as_its_fold_does(faults: tuple[str, ...]) -> None:
    run = recorded(*faults)
    memory = account(run)
    assert memory.held is not None and memory.held.peak_blocks > 0
    assert memory.saved is not None and memory.saved.peak_blocks > 0
    agree(memory, run)


@pytest.mark.parametrize(
    ("switches", "samples"),
    [({"steps_in_flight": 2}, 3), ({"speculation": 3}, 1), ({"max_num_batched_tokens": 24}, 2)],
)
def test_forks_drafts_chunks_and_overlapping_steps_count_as_their_fold_does(
    switches: dict[str, Any], samples: int
) -> None:
    workload, model, sink = default_workload(), SymbolicModel(), MemorySink()
    config = EngineConfig(**(dict(workload.switches) | switches))
    prompts = [replace(spec.tokenized(model.encode, 8), n=samples) for spec in workload.specs[:4]]
    make_engine(model, config, prompts, sink).run(400)
    memory = account(sink.envelopes)
    assert memory.held is not None and memory.held.peak_blocks > 0
    agree(memory, sink.envelopes)


@given(traces(), st.integers(1, 9))
def test_any_events_are_counted_as_the_fold_counts_them(
    events: list[Envelope], context: int
) -> None:
    told = [
        e
        for e in events
        if not isinstance(e.event, _IN_ITS_OWN_WAY)
        and not (isinstance(e.event, SlotsWritten) and e.event.write in ("pad", "dummy"))
    ]
    agree(account(told), told)
    json.dumps(account(events, context=context).plain(), allow_nan=False)
