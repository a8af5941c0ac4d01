"""What a trace says of its run before anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvrewind.engine.canary.wordpiece import WordPiece
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.header import run_header
from kvrewind.engine.runner import ModelCard
from kvrewind.engine.symbolic import SymbolicRunner


class Limited(SymbolicRunner):
    """A simulator whose model has a limited context."""

    @property
    def card(self) -> ModelCard:
        return replace(super().card, max_positions=2048)


def runner(config: EngineConfig, of: type[SymbolicRunner] = SymbolicRunner) -> SymbolicRunner:
    return of(config, WordPiece.load())


def test_the_models_context_stands_beside_the_switches_and_is_none_of_them() -> None:
    config = EngineConfig(block_size=8, num_blocks=4)
    recorded = run_header(config, runner(config, Limited)).config
    assert recorded["max_positions"] == 2048
    assert EngineConfig.from_recorded(recorded) == config


def test_a_model_without_a_limit_names_none() -> None:
    config = EngineConfig()
    assert "max_positions" not in run_header(config, runner(config)).config


@pytest.mark.parametrize("name", ["block_size", "num_blocks", "seed"])
def test_the_header_says_what_the_configuration_says(name: str) -> None:
    config = EngineConfig(block_size=8, num_blocks=5, seed=7)
    assert getattr(run_header(config, runner(config)), name) == getattr(config, name)
