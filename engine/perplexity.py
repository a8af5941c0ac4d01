"""What the precision of the KV cache costs: perplexity by the length of the context.

    window        |.....................................####|   a stretch of the text
    length 8192   |.....................................####|   chunk by chunk through the pool;
    length 4096                      |..................####|   only the last tokens are predicted
    length 2048                                |........####|

Every length predicts the same tokens, and so does every setting: what differs is how much of the
text stands before them, and how precisely the cache holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..recorder.errors import BadInput
from .config import EngineConfig
from .inputs import GroupInputs, StepInputs
from .runner import KVGroup, ModelCard

if TYPE_CHECKING:
    from .transformers_runner import TransformersRunner

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

WeightsDtype = Literal["float32", "bfloat16", "float16"]

CHUNK = 512
"""Tokens of a step: bounds the logits, and has no influence on the result beyond rounding."""


class NotMeasurable(BadInput):
    """Lengths, windows, text and model don't go together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which tokens are predicted: the `last` of each window, after contexts of some `lengths`.

    A context of n tokens ends with the last but one token of the window; the first of the
    predicted tokens has n - last + 1 tokens before it, the last one n.

    Raises `NotMeasurable` for numbers that can't be.
    """

    lengths: tuple[int, ...]
    last: int
    windows: int

    def __post_init__(self) -> None:
        if not self.lengths or min(self.last, self.windows) < 1:
            raise NotMeasurable(
                "there must be at least one length, and --last and --windows must be at least 1"
            )
        if min(self.lengths) < self.last:
            raise NotMeasurable(
                f"a context of {min(self.lengths)} tokens can't have its last {self.last} "
                f"predicted; give --lengths of at least {self.last}, or a smaller --last"
            )

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def steps(self) -> int:
        """How many steps `measure` takes."""
        return self.windows * sum(-(-length // CHUNK) for length in self.lengths)

    def refuse_beyond(self, card: ModelCard) -> None:
        """Raises `NotMeasurable` for a length that the model has no positions for."""
        if card.max_positions is not None and self.longest > card.max_positions:
            raise NotMeasurable(
                f"{card.name} has {card.max_positions} positions, not {self.longest}; "
                "give shorter --lengths"
            )

    def cut(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """The windows: longest + 1 tokens each, spread evenly over the text.

        Raises `NotMeasurable` if the text doesn't have as many.
        """
        size = self.longest + 1
        if len(tokens) < size * self.windows:
            raise NotMeasurable(
                f"the text has {len(tokens)} tokens, and {self.windows} windows of {size} take "
                f"{size * self.windows}; give a longer --text, fewer --windows or shorter --lengths"
            )
        starts = np.linspace(0, len(tokens) - size, self.windows).astype(int).tolist()
        return [tokens[start : start + size] for start in starts]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a perplexity is from that of another setting, and twice its standard error."""

    perplexity: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Losses in nats, one a predicted token, of one setting at one length."""

    kv_dtype: str
    length: int
    losses: FloatArray

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.losses.mean()))

    def difference(self, other: Measured) -> Difference:
        """From `other`, which predicted the same tokens: the error is that of the pairs."""
        pairs = self.losses - other.losses
        error = pairs.std(ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
        return Difference(self.perplexity - other.perplexity, float(2 * error * other.perplexity))


def config_for(kv_dtype: str, plan: Plan, *, device: str, dtype: WeightsDtype) -> EngineConfig:
    """An engine whose pool holds one window. Raises `BadSwitch` for what it doesn't know."""
    config = EngineConfig(kv_dtype=kv_dtype, device=device, dtype=dtype)
    return replace(config, num_blocks=-(-plan.longest // config.block_size))


def measure(
    runner: TransformersRunner,
    config: EngineConfig,
    windows: Sequence[Sequence[int]],
    plan: Plan,
    *,
    on_step: Callable[[], None] | None = None,
) -> list[Measured]:
    """One entry a length. Pool and windows as `config_for` and `Plan.cut` make them."""
    return [
        Measured(
            config.kv_dtype,
            length,
            np.concatenate(
                [
                    losses_after(
                        runner, config, window[-length - 1 :], last=plan.last, on_step=on_step
                    )
                    for window in windows
                ]
            ),
        )
        for length in plan.lengths
    ]


def losses_after(
    runner: TransformersRunner,
    config: EngineConfig,
    tokens: Sequence[int],
    *,
    last: int,
    chunk: int = CHUNK,
    on_step: Callable[[], None] | None = None,
) -> FloatArray:
    """-log p(token | all before it), in nats, of each of the `last` tokens.

    Keys and values of every chunk are written to the pool and read from there, as in any prefill.
    """
    losses: list[FloatArray] = []
    known = np.asarray(tokens, dtype=np.int64)
    end = len(known) - 1  # nothing comes after the last token
    for step, start in enumerate(range(0, end, chunk), 1):
        positions = np.arange(start, min(start + chunk, end))
        asking = positions[positions >= end - last]
        inputs = _inputs(step, known[positions], positions, asking - start, runner.card, config)
        logits = runner.logits(inputs)
        targets = known[asking + 1].tolist()
        found = logits.logsumexp(-1) - logits[range(len(targets)), targets]
        losses.append(found.double().cpu().numpy())
        if on_step is not None:
            on_step()
    return np.concatenate(losses)


def _inputs(
    step: int,
    tokens: IntArray,
    positions: IntArray,
    logit_tokens: IntArray,
    card: ModelCard,
    config: EngineConfig,
) -> StepInputs:
    """One row: the next chunk of a sequence that holds the pool's blocks from the last to the
    first, so that nothing lies where its position says."""
    size = config.block_size
    table = np.arange(config.num_blocks)[::-1]
    slots = table[positions // size] * size + positions % size
    end = int(positions[-1]) + 1
    groups = tuple(map(KVGroup.of, card.groups))
    return StepInputs(
        step=step,
        requests=("text",),
        phases=("prefill",),
        query_lens=np.asarray([len(tokens)]),
        seq_lens=np.asarray([end]),
        tokens=tokens,
        positions=positions,
        groups=tuple(
            GroupInputs(
                block_tables=table[None, : -(-end // size)],
                slot_mapping=slots,
                layers=group.layers if len(groups) > 1 else None,
                window=group.window,
            )
            for group in groups
        ),
        logit_tokens=logit_tokens,
        samples=(),
        drafts=np.zeros(1, dtype=np.int64),
    )


def standard_text() -> str:
    """English that every Python brings along: the reference behind `help()`.

    Raises `NotMeasurable` where a distribution has left it out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise NotMeasurable(
            "this Python comes without pydoc_data.topics; give a text with --text FILE"
        ) from error
    return "\n\n".join(topics[name] for name in sorted(topics))
