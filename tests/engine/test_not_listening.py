"""Where nobody listens, no event is even made: a hook is one test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from any_mix import Mix
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.recorder.events import EVENTS
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.sink import NullSink, Sink


def run(mix: Mix, sink: Sink) -> Engine:
    engine = make_engine(open_model(mix.model, EngineConfig()), mix.config, mix.prompts, sink)
    for change in mix.epochs:
        engine.change_epoch(change)
    engine.run(max_steps=1000)
    return engine


def refusing(name: str) -> Callable[..., None]:
    def refuse(self: object, **_: Any) -> None:
        raise AssertionError(f"a {name} was made")

    return refuse


@pytest.mark.parametrize("seed", range(20))
def test_no_event_is_made_and_every_token_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix = Mix.of(seed)
    told = run(mix, MemorySink())
    for event in EVENTS:
        monkeypatch.setattr(event, "__init__", refusing(event.__name__))
    silent = run(mix, NullSink())
    assert {n: r.tokens for n, r in silent.requests.items()} == {
        n: r.tokens for n, r in told.requests.items()
    }
    assert silent.step_number == told.step_number
