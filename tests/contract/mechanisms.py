"""Every scene of every mechanism, and its twins with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import scenes_batches
import scenes_buffers
import scenes_contents
import scenes_drafts
import scenes_flight
import scenes_forks
import scenes_groups
import scenes_tiers
from sound import Line, Sound

MODULES = (
    scenes_groups,
    scenes_batches,
    scenes_forks,
    scenes_drafts,
    scenes_flight,
    scenes_buffers,
    scenes_tiers,
    scenes_contents,
)

Scene = Callable[[], Sound]


class Twin(NamedTuple):
    scene: Scene
    breaks: Callable[[Sound], Line]
    """Breaks a line, and returns the one that is to blame."""
    verdict: str
    check: str
    fault_class: str | None

    @property
    def name(self) -> str:
        return f"{self.scene.__name__}{self.breaks.__name__}"


SCENES: tuple[Scene, ...] = tuple(scene for module in MODULES for scene in module.SCENES)
TWINS: tuple[Twin, ...] = tuple(Twin(*twin) for module in MODULES for twin in module.TWINS)
