"""Short runs on the simulator, for tests of one mechanism each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import Event
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check

MODEL = SymbolicModel()


def prompt(name: str, tokens: Any, **fields: Any) -> Prompt:
    defaults = {"max_new_tokens": 3, "ignore_eos": True}
    return Prompt(request=name, prompt_tokens=tuple(tokens), **(defaults | fields))


def run(
    prompts: Sequence[Prompt], epochs: Sequence[EpochChange] = (), **switches: Any
) -> tuple[Engine, MemorySink]:
    """In blocks of four. What the checks say of a run without a fault is always clean."""
    sink = MemorySink()
    config = EngineConfig(**({"block_size": 4, "num_blocks": 32} | switches))
    engine = make_engine(MODEL, config, prompts, sink)
    for change in epochs:
        engine.change_epoch(change)
    engine.run(max_steps=300)
    assert check(sink.envelopes).verdict == "clean"
    return engine, sink


def events(sink: MemorySink, kind: type[Event]) -> list[Any]:
    return [e.event for e in sink.envelopes if isinstance(e.event, kind)]


def answers(engine: Engine) -> dict[str, list[int]]:
    return {name: r.tokens[len(r.prompt.prompt_tokens) :] for name, r in engine.requests.items()}
