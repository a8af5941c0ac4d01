"""A physical block of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from .free_queue import LOWEST, Rank
from .prefix_cache import Entry


@dataclass(slots=True)
class Block:
    """A physical block. `generation` counts how often it was handed out."""

    block_id: int
    generation: int = 0
    ref_count: int = 0
    holders: list[tuple[str, int]] = field(default_factory=list)
    """(request, logical index) of each holder."""
    entry: Entry | None = None
    """Its entry in the prefix index."""
    rank: Rank = LOWEST
    """What the entry is worth: the most that any request said that shared it."""

    def is_shared_by(self, request: str, index: int) -> bool:
        """Whether it is this request's block at that index, and others' too."""
        return self.ref_count > 1 and (request, index) in self.holders
