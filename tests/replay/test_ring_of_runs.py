"""Rings of whole runs of the engine, through files: as the run, as far as they reach."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import SpanDropped
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.ring import Ring
from kvrewind.recorder.ring_limit import RingLimit
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.reducer import fold
from kvrewind.replay.ring_state import RingState
from kvrewind.replay.snapshot import compacted
from kvrewind.replay.timeline import Timeline
from mixed import mixed
from ringed import plain


def ring_of(text: str) -> Ring:
    return Ring(RingLimit.parse(text), RingState())


@pytest.mark.parametrize("seed", range(16))
def test_a_ring_of_any_length_folds_to_the_state_of_the_run(seed: int, tmp_path: Path) -> None:
    run, path = mixed(seed), tmp_path / "ring.kvtrace"
    length = Random(seed).randint(1, 60)
    with TraceWriter(path, ring=ring_of(f"{length}steps")) as writer:
        writer.write_envelopes(run)
    assert writer.failure is None
    with TraceReader(path) as trace:
        found = list(trace.envelopes())
        assert trace.problems == []
        assert plain(compacted(fold(found))) == plain(compacted(fold(run)))
        timeline, middle = Timeline(trace), found[-len(found) // 3].seq
        there = plain(compacted(timeline.state_at(middle)))
    assert there == plain(compacted(fold(e for e in run if e.seq <= middle)))
    report = check(found)
    assert report.findings == ()
    is_cut = any(isinstance(e.event, SpanDropped) for e in found)
    assert report.verdict == ("incomplete" if is_cut else "clean")
    assert len({e.step for e in found}) >= min(length, len({e.step for e in run}))


def recorded_size(path: Path, requests: int) -> int:
    rng = Random(5)
    prefix = tuple(rng.randint(3, 90) for _ in range(40))
    prompts = [
        Prompt(
            request=f"request-{number}",
            prompt_tokens=(*prefix[: rng.randint(0, 40)], *rng.choices(range(3, 90), k=20)),
            max_new_tokens=8,
            arrival_step=1 + 2 * number,
            ignore_eos=True,
        )
        for number in range(requests)
    ]
    with TraceWriter(path, ring=ring_of("20steps")) as writer:
        config = EngineConfig(num_blocks=40, max_num_seqs=8)
        make_engine(SymbolicModel(), config, prompts, writer).run()
    assert writer.failure is None
    with TraceReader(path) as trace:
        assert trace.problems == []
        report = check(trace.envelopes())
    assert (report.verdict, report.findings) == ("incomplete", ())
    return path.stat().st_size


def test_three_times_the_run_makes_no_larger_a_ring(tmp_path: Path) -> None:
    once = recorded_size(tmp_path / "once.kvtrace", 50)
    assert recorded_size(tmp_path / "thrice.kvtrace", 150) < 1.3 * once
