"""The model runner: steps of the engine, computed by a transformers model over a paged pool."""

from __future__ import annotations

import torch
from torch import Tensor

from ..recorder.errors import BadInput
from .adopted_model import AdoptedModel
from .attention.fast import FastAttention
from .attention.pool import KVPool
from .attention.reference import ReferenceAttention
from .attention.step import PagedStep
from .config import EngineConfig
from .inputs import StepInputs
from .kv_dtype import layer_dtypes
from .request import Request
from .runner import ModelCard, StepOutput

ATTENTION = {"fast": FastAttention, "reference": ReferenceAttention}


class TransformersRunner:
    """Implements `runner.Runner`: one run's KV pool, over a model that may serve several runs.

    Raises `BadInput` if the pool doesn't fit into memory, `BadSwitch` if `kv_dtype` lists another
    number of layers than the model has.
    """

    def __init__(self, adopted: AdoptedModel, config: EngineConfig) -> None:
        self._adopted = adopted
        self._attention = ATTENTION[config.attention]
        self.pool = _new_pool(adopted, config)

    @property
    def card(self) -> ModelCard:
        return self._adopted.card

    def begin(self, request: Request) -> None:
        """Nothing to do: what a row says follows from its tokens."""

    def execute(self, inputs: StepInputs) -> StepOutput:
        """One step: KV written to `slot_mapping`, then attention, then the greedy tokens."""
        return greedy(self.logits(inputs))

    @torch.inference_mode()
    def logits(self, inputs: StepInputs) -> Tensor:
        """[R, vocab] float32 logits of each row's last query."""
        step = PagedStep(inputs, self.pool, self._attention(inputs, self.pool))
        return self._adopted.logits(inputs, step)


def greedy(logits: Tensor) -> StepOutput:
    """logits [R, vocab] -> the best token of each row, its log probability and its lead.

    A row that saw nothing (a planted mask fault can do that) has NaN logits: they count as equal,
    so that the run goes on and the trace shows what happened.
    """
    finite = torch.nan_to_num(logits)
    best = finite.argmax(dim=-1)
    top = finite.topk(2, dim=-1).values
    logprobs = top[:, 0] - finite.logsumexp(dim=-1)
    return StepOutput(
        tokens=tuple(best.tolist()),
        logprobs=tuple(logprobs.tolist()),
        margins=tuple((top[:, 0] - top[:, 1]).tolist()),
    )


def _new_pool(adopted: AdoptedModel, config: EngineConfig) -> KVPool:
    kv_dtypes = layer_dtypes(config.kv_dtype, len(adopted.shapes))
    try:
        return KVPool(
            adopted.shapes,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            dtype=adopted.dtype,
            device=adopted.device,
            kv_dtypes=kv_dtypes,
        )
    except RuntimeError as error:  # what torch raises when an allocation fails, on any device
        raise BadInput(
            f"a pool of {config.num_blocks} blocks doesn't fit into the memory of "
            f"{adopted.device} ({str(error).splitlines()[0]}); lower --num-blocks"
        ) from error
