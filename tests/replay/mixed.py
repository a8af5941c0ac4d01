"""Sound runs with random switches and workloads, as `tests/engine/any_mix.py` draws them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.memory import MemorySink

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from any_mix import Mix


@cache
def mixed(seed: int) -> tuple[Envelope, ...]:
    mix, sink = Mix.of(seed), MemorySink()
    model = open_model(mix.model, EngineConfig())
    engine = make_engine(model, mix.config, mix.prompts, sink)
    for change in mix.epochs:
        engine.change_epoch(change)
    engine.run(max_steps=1000)
    return tuple(sink.envelopes)
