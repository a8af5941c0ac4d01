"""What the engine asks of whatever computes a step: a real model, or the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .inputs import BlockMove, StepInputs
from .request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """One token per sample of `StepInputs`, [S].

    `margins` is the difference between the best and the second best logit, `logprobs` the log
    probability of the sampled token; None where nothing is computed (the simulator).
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    margins: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What `RunStarted` says of the model.

    `groups`: list of {layers, kv_heads, head_dim, window?}, one per KV group.
    """

    name: str
    digest: str | None
    tokenizer_digest: str | None
    dtype: str
    device: str
    groups: list[dict[str, Any]]
    eos_tokens: frozenset[int]
    vocab_size: int
    max_positions: int | None
    versions: dict[str, str]
    paragraph_tokens: frozenset[int] = frozenset()
    """Tokens that end a paragraph: where a prefix may end with `granularity` paragraph."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share block numbers and tables."""

    layers: tuple[int, ...]
    window: int | None

    @classmethod
    def of(cls, group: dict[str, Any]) -> KVGroup:
        return cls(tuple(group["layers"]), group.get("window"))


class BlockMemory(Protocol):
    """The device memory of the blocks, and the host memory behind it."""

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Scrubs and copies, in their order."""
        ...

    def digest(self, block: int, group: int) -> str:
        """Of all that the block holds."""
        ...

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int], group: int) -> None:
        """Copy blocks to host memory, where each host block keeps what it is given."""
        ...

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int], group: int) -> None:
        """Copy what host blocks keep into blocks of the device."""
        ...


class Runner(Protocol):
    """Computes steps over a paged pool of num_blocks x block_size slots that it owns."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def memory(self) -> BlockMemory: ...

    def begin(self, request: Request) -> None:
        """A request was taken in. Only the simulator, which knows what each should say, cares."""
        ...

    def execute(self, inputs: StepInputs) -> StepOutput:
        """Carries out the step's moves, writes its KV into `slot_mapping`, attends, and chooses
        its samples."""
        ...
