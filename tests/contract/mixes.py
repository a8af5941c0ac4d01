"""Random workloads for the simulator: few tokens, shared prefixes, small pools, late arrivals."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.memory import MemorySink

MODEL = SymbolicModel()
TOKENS = st.integers(3, 9)


@st.composite
def prompts(draw: st.DrawFn, size: int) -> list[Prompt]:
    """Some begin alike, some with another's second block, some leave early."""
    bases = [draw(st.lists(TOKENS, min_size=4 * size, max_size=4 * size)) for _ in range(2)]
    made = []
    for number in range(draw(st.integers(2, 8))):
        base = draw(st.sampled_from([bases[0], *bases]))
        start = draw(st.sampled_from([0, 0, 0, size]))
        kept = draw(st.integers(start + 1, len(base)))
        arrival = draw(st.integers(1, 8))
        made.append(
            Prompt(
                request=f"r{number}",
                prompt_tokens=(*base[start:kept], *draw(st.lists(TOKENS, max_size=2 * size))),
                max_new_tokens=draw(st.integers(1, 3 * size)),
                arrival_step=arrival,
                abort_step=draw(st.none() | st.none() | st.integers(arrival, arrival + 8)),
                tenant=draw(st.sampled_from([None, None, "t"])),
                ignore_eos=True,
            )
        )
    return made


@st.composite
def runs(draw: st.DrawFn, *faults: str) -> tuple[EngineConfig, list[Prompt]]:
    """Any combination of switches, and a workload that fits its pool, with these faults."""
    size = draw(st.sampled_from([2, 4, 8]))
    config = EngineConfig(
        block_size=size,
        num_blocks=draw(st.integers(9, 20)),
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.sampled_from([4, 16, 64, 256])),
        prefix_cache=draw(st.sampled_from([True, True, True, False])),
        continuous_batching=draw(st.sampled_from([True, True, False])),
        attention=draw(st.sampled_from(["fast", "reference"])),
        faults=faults,
    )
    return with_implied(config), draw(prompts(size))


def recorded(run: tuple[EngineConfig, list[Prompt]], steps: int = 120) -> list[Envelope]:
    """The events of at most so many steps."""
    config, requests = run
    sink = MemorySink()
    engine: Any = make_engine(MODEL, config, requests, sink)
    while engine.has_work and engine.step_number < steps:
        engine.step()
    return sink.envelopes
