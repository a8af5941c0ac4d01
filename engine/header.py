"""What a trace says of its run before anything else."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version

from ..recorder.events import RunStarted
from .config import EngineConfig
from .runner import ModelCard, Runner

ENGINE_VERSION = "2"
"""Of the engine's behaviour, not of the package: what `RunStarted.engine_version` says."""


def run_header(config: EngineConfig, runner: Runner) -> RunStarted:
    card = runner.card
    return RunStarted(
        engine="kvrewind",
        engine_version=ENGINE_VERSION,
        model=card.name,
        model_digest=card.digest,
        tokenizer_digest=card.tokenizer_digest,
        dtype=card.dtype,
        device=card.device,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        groups=card.groups,
        sentinel_blocks=(),
        seed=config.seed,
        wall_clock=datetime.now(UTC).isoformat(timespec="milliseconds"),
        config=config.as_recorded() | _context(runner.card),
        versions={**_made_with(), **card.versions},
    )


def _made_with() -> dict[str, str]:
    """What computes beside the model, and on what kind of machine."""
    return {
        "kvrewind": version("kvrewind"),
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _context(card: ModelCard) -> dict[str, int]:
    """What the model holds at most, where it has a limit: contiguous allocation reserves that."""
    return {} if card.max_positions is None else {"max_positions": card.max_positions}
