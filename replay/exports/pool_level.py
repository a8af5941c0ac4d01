"""How many blocks of one pool are held, cached and free, counted along the events."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockRegistered,
    BlockShared,
    BlockUnregistered,
    Event,
    Scalar,
)


@dataclass(slots=True)
class PoolLevel:
    """Held: handed out and not freed. Cached: not held, and under a key of the prefix index."""

    held: set[int] = field(default_factory=set)
    cached: set[int] = field(default_factory=set)
    _keys: dict[int, set[Scalar]] = field(default_factory=dict)

    def see(self, event: Event) -> bool:
        """Whether the event was about a block of the pool."""
        match event:
            case BlockAllocated() | BlockShared():
                self.held.add(event.block)
            case BlockFreed():
                self.held.discard(event.block)
            case BlockRegistered():
                self._keys.setdefault(event.block, set()).add(event.key)
            case BlockUnregistered():
                self._keys.get(event.block, set()).discard(event.key)
            case _:
                return False
        if event.block not in self.held and self._keys.get(event.block):
            self.cached.add(event.block)
        else:
            self.cached.discard(event.block)
        return True
