"""Weights and adapters that are loaded anew while the engine runs.

What was computed before is void. An engine that reloads weights and keeps its prefix index answers
from the old ones (LMDeploy 4917). Rightly the index is reset, and requests under way compute their
tokens again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..recorder.decision import DecisionId
from ..recorder.events import EpochChanged
from .block_pool import BlockPool
from .journal import Journal
from .questions import Reset
from .request import Prompt

Epoch = str | int


@dataclass(frozen=True, slots=True)
class EpochChange:
    """An input like a prompt: at `step` the weights, one adapter, or the pool's memory are others
    than before. `epoch` names what they are now."""

    what: Literal["weights", "adapter", "pool"]
    epoch: Epoch
    adapter: Epoch | None = None
    step: int = 1

    def concerns(self, adapter: Epoch | None) -> bool:
        """Whether what was computed with this adapter is void."""
        return self.what != "adapter" or self.adapter == adapter


class Epochs:
    """What is loaded, and since when."""

    def __init__(self, pools: Sequence[BlockPool], journal: Journal) -> None:
        self._pools = pools
        self._journal = journal
        self._weights: Epoch | None = None
        self._adapters: dict[Epoch, Epoch] = {}
        self._changes = 0

    def of(self, prompt: Prompt) -> str | None:
        """The epoch that its content is computed in; None as long as nothing was loaded anew."""
        adapter = None if prompt.adapter is None else self._adapters.get(prompt.adapter)
        if self._weights is None and adapter is None:
            return None
        return repr((self._weights, adapter))

    def change(self, change: EpochChange) -> None:
        """Takes the new epoch in; entries of the index that are void leave it."""
        self._enter(change)
        id = DecisionId("epoch", change.what, self._changes, 0)
        question = Reset(id, change.what, change.adapter)
        if self._journal.decide(question):
            for pool in self._pools:
                pool.reset(lambda content: change.concerns(content.adapter), str(id))

    # Transitions: mutate and emit, nothing else does either.

    def _enter(self, change: EpochChange) -> None:
        self._changes += 1
        if change.what == "weights":
            self._weights = change.epoch
        elif change.what == "adapter" and change.adapter is not None:
            self._adapters[change.adapter] = change.epoch
        if self._journal.listening:
            self._journal.emit(
                EpochChanged(epoch=change.epoch, what=change.what, adapter=change.adapter)
            )
