"""The model runner: steps of the engine, computed by a transformers model over a paged pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..recorder.errors import BadInput
from .adopted_model import AdoptedModel
from .attention import paths
from .attention.pool import KVPool
from .attention.reference import ReferenceAttention
from .attention.step import AttentionPath, PagedStep
from .config import EngineConfig
from .inputs import StepInputs
from .kv_dtype import layer_dtypes
from .paged_memory import PagedMemory
from .request import Request
from .runner import ModelCard, StepOutput
from .sampler import choose

if TYPE_CHECKING:  # it needs triton
    from .decode_graphs import DecodeGraphs


class TransformersRunner:
    """Implements `runner.Runner`: one run's KV pool, over a model that may serve several runs.

    Raises `BadInput` if the pool doesn't fit into memory, `NotExact` if the run is to be exact and
    the model or the machine doesn't allow it.
    """

    def __init__(self, adopted: AdoptedModel, config: EngineConfig) -> None:
        self._adopted = adopted
        self._model = adopted.exact if config.exact else adopted
        self._path = _path(adopted, config)
        self._seed = config.seed
        self.pool = _new_pool(adopted, config)
        self._graphs = _graphs(adopted, self.pool, config)
        layers = [group["layers"] for group in adopted.card.groups]
        self.memory = PagedMemory(self.pool, layers)

    @property
    def card(self) -> ModelCard:
        return self._adopted.card

    def begin(self, request: Request) -> None:
        """Nothing to do: what a row says follows from its tokens."""

    def execute(self, inputs: StepInputs) -> StepOutput:
        """One step: blocks scrubbed and copied, KV written, attention, the tokens."""
        return choose(self.logits(inputs), inputs.samples, self._seed)

    @torch.inference_mode()
    def logits(self, inputs: StepInputs) -> Tensor:
        """[S, vocab] float32 logits of the step's `logit_tokens`."""
        self.memory.move(inputs.moves)
        if self._graphs is not None and inputs.buffer is not None:
            return self._graphs.logits(inputs)
        return self._model.logits(inputs, PagedStep(inputs, self.pool, self._path))


def _path(adopted: AdoptedModel, config: EngineConfig) -> AttentionPath:
    if config.exact:
        return adopted.exact.path(nan_scrubbed=config.scrub == "nan")
    if config.explicit_mask:
        return ReferenceAttention
    return paths.fast_path(adopted.device, nan_scrubbed=config.scrub == "nan")


def _graphs(adopted: AdoptedModel, pool: KVPool, config: EngineConfig) -> DecodeGraphs | None:
    """Where decode steps are replayed as CUDA graphs, their graphs."""
    if not config.persistent_buffers or config.explicit_mask or config.exact:
        return None
    if not paths.uses_kernels(pool.device):
        return None
    from .decode_graphs import CudaCapture, DecodeGraphs

    return DecodeGraphs(adopted, pool, CudaCapture())


def _new_pool(adopted: AdoptedModel, config: EngineConfig) -> KVPool:
    try:
        return paths.pool_type(adopted.device)(
            [layer.shape for layer in adopted.layers],
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            dtype=adopted.dtype,
            device=adopted.device,
            kv_dtypes=layer_dtypes(config.kv_dtype, len(adopted.layers)),
        )
    except RuntimeError as error:  # what torch raises when an allocation fails, on any device
        raise BadInput(
            f"a pool of {config.num_blocks} blocks doesn't fit into the memory of "
            f"{adopted.device} ({str(error).splitlines()[0]}); lower --num-blocks"
        ) from error
