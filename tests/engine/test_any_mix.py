"""Whatever is switched on together: nobody's answer changes, the checks stay silent, the fold is
the engine, and the run replays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from any_mix import Mix
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.recorder.events import DecisionMade, RequestFinished
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.recording import Recording
from kvrewind.replay.reducer import apply
from kvrewind.replay.reexecute import Reexecutor, first_divergence
from kvrewind.replay.state import State
from soundness import freed_in_flight
from summaries import engine_summary

MODELS = {name: open_model(name, EngineConfig()) for name in ("symbolic", "symbolic-windows")}
"""One KV group, and two of which one has a window."""
COMBINATIONS = 200
BATCH = 10


def run(mix: Mix) -> tuple[Engine, MemorySink]:
    """To the end, comparing engine and fold after every step."""
    sink, state = MemorySink(), State()
    engine = make_engine(MODELS[mix.model], mix.config, mix.prompts, sink)
    for change in mix.epochs:
        engine.change_epoch(change)
    folded = 0
    while engine.has_work:
        assert engine.step_number < 1000, "the run doesn't end"
        engine.advance()
        for envelope in sink.envelopes[folded:]:
            apply(state, envelope)
        folded = len(sink.envelopes)
        assert state.summary() == engine_summary(engine), f"step {engine.step_number}"
    engine.end()
    return engine, sink


def answers_alone(mix: Mix) -> dict[str, list[int]]:
    """What each request says in an engine without any of the mechanisms, one at a time."""
    plain = EngineConfig(
        block_size=16, num_blocks=64, max_num_seqs=1, prefix_cache=False, seed=mix.config.seed
    )
    alone = [replace(prompt, abort_step=None, arrival_step=1) for prompt in mix.prompts]
    engine = make_engine(MODELS[mix.model], plain, alone, MemorySink())
    engine.run()
    return {name: request.tokens for name, request in engine.requests.items()}


@pytest.mark.parametrize("batch", range(COMBINATIONS // BATCH))
def test_any_mechanisms_together_change_nothing_and_stay_clean(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        mix = Mix.of(seed)
        engine, sink = run(mix)
        expected = answers_alone(mix)
        for name, request in engine.requests.items():
            said = expected[name][: len(request.tokens)]
            assert request.tokens == said, f"seed {seed}, {name}, {mix.config}"
        report = check(sink.envelopes)
        assert (report.verdict, report.findings) == ("clean", ()), f"seed {seed}, {mix.config}"
        again = Reexecutor(Recording.of(sink.envelopes), MODELS[mix.model]).run()
        assert first_divergence(sink.envelopes, again.envelopes, bits=True) is None, f"seed {seed}"
        assert all(not block.ref_count for pool in engine.pools for block in pool.blocks)
        assert not freed_in_flight(sink.envelopes), f"seed {seed}"


def test_the_mixes_exercise_every_mechanism() -> None:
    """A run without a fork proves nothing about forks."""
    seen = Counter[str]()
    for seed in range(40):
        _, sink = run(Mix.of(seed))
        seen.update(envelope.kind for envelope in sink.envelopes)
        ends = (e.event for e in sink.envelopes)
        seen.update(e.reason for e in ends if isinstance(e, RequestFinished))
    assert min(
        seen[kind]
        for kind in (
            "BlockCopied", "BlockScrubbed", "BlockUnregistered", "DraftVerified", "GraphReplayed",
            "RequestForked", "RequestPreempted", "TransferStarted", "TransferFinished", "aborted",
            "eos", "length",
        )
    ) > 3  # fmt: skip
    assert seen["error"] == 0


def test_no_decision_is_made_twice_under_one_name() -> None:
    for seed in range(60):
        _, sink = run(Mix.of(seed))
        made = Counter(
            e.event.decision for e in sink.envelopes if isinstance(e.event, DecisionMade)
        )
        assert not [id for id, count in made.items() if count > 1], f"seed {seed}"
