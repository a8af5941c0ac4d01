"""The switches of a block pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from .config import EngineConfig
from .free_queue import Order
from .inputs import ScrubHow


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Which free block is handed out, and what blocks are overwritten with, and when."""

    order: Order = "first-freed"
    quarantine: int = 0
    scrub: ScrubHow | None = None
    scrub_at: Literal["free", "allocation"] = "free"

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        return cls(
            order="last-freed" if config.reuse == "last-freed" else "first-freed",
            quarantine=config.quarantine,
            scrub=None if config.scrub == "none" else config.scrub,
            scrub_at=config.scrub_at,
        )
