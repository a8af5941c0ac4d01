"""Decode steps that are captured once and replayed: CUDA graphs over the persistent buffers.

    capture    the model's forward over device arrays that stay where they are, one graph a buffer
    a step     the buffer's arrays are copied into them, then the graph is replayed

A graph runs no Python: whatever depends on the step has to stand in those arrays.
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .adopted_model import AdoptedModel
from .attention.hook import STEP_ARGUMENT
from .attention.kernels.decode import DecodeRows, attend_decode
from .attention.pool import KVPool
from .attention.scores import Scoring
from .attention.step import by_token
from .inputs import IntArray, StepInputs

Compute = Callable[[], Tensor]
Capture = Callable[[Compute], Compute]
"""Makes of a computation one that does the same again, on what its arrays then hold."""


class CudaCapture:
    """Implements `Capture`. All graphs share their memory, so a result stands until the next."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # kernels are compiled and libraries set up before capture
            compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class DecodeGraphs:
    """The captured steps of one run, by the names of their buffers."""

    def __init__(self, adopted: AdoptedModel, pool: KVPool, capture: Capture) -> None:
        self._adopted = adopted
        self._pool = pool
        self._capture = capture
        self._steps: dict[str, tuple[_Arrays, Compute]] = {}

    def logits(self, inputs: StepInputs) -> Tensor:
        """As `AdoptedModel.logits`, for a step whose arrays stand in a persistent buffer."""
        assert inputs.buffer is not None, "only steps in a buffer are captured"
        name = inputs.buffer.buffer
        if name in self._steps:
            arrays, replay = self._steps[name]
            arrays.fill(inputs)
        else:
            arrays = _Arrays(inputs, self._pool)
            replay = self._capture(lambda: self._compute(arrays))
            self._steps[name] = arrays, replay
        wanted = torch.from_numpy(inputs.logit_tokens).to(self._pool.device)
        return replay()[wanted]

    def _compute(self, arrays: _Arrays) -> Tensor:
        """[R, vocab] float32."""
        output = self._adopted.model(
            input_ids=arrays.tokens[None],
            position_ids=arrays.positions[None],
            use_cache=False,
            **{STEP_ARGUMENT: arrays},
        )
        return output.logits[0].float()


class _Arrays:
    """What a graph reads of a step of R one-token rows; implements `hook.LayerCall` on it."""

    def __init__(self, inputs: StepInputs, pool: KVPool) -> None:
        self._pool = pool
        self._group_of = {
            layer: inputs.group_of(layer) for layer in range(len(pool.shapes))
        }  # fmt: skip
        self.tokens = self._int64(inputs.tokens)  # [R]
        self.positions = self._int64(inputs.positions)  # [R]
        self._rows = DecodeRows(
            tokens=self._int32(np.arange(len(inputs.tokens))),
            tables=self._int32(np.arange(len(inputs.tokens))),
            seq_lens=self._int32(inputs.seq_lens),
        )
        self._groups = [
            (self._int64(group.slot_mapping), self._int32(group.block_tables), group.window)
            for group in inputs.groups
        ]

    def fill(self, inputs: StepInputs) -> None:
        """The next step, in the same places."""
        _put(self.tokens, inputs.tokens)
        _put(self.positions, inputs.positions)
        _put(self._rows.seq_lens, inputs.seq_lens)
        for (slots, tables, _), group in zip(self._groups, inputs.groups, strict=True):
            _put(slots, group.slot_mapping)
            _put(tables, group.block_tables)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        extras: dict[str, Any],
    ) -> Tensor:
        layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType] -- proved at load
        slots, tables, window = self._groups[self._group_of[layer]]
        self._pool.write(layer, slots, by_token(key), by_token(value))
        keys, values = self._pool.stored(layer)
        queries = by_token(query)
        out = queries.new_zeros(*queries.shape[:2], value.shape[-1])
        scoring = Scoring(scaling, extras.get("softcap"), extras.get("s_aux"))
        attend_decode(
            out, queries, keys, values, tables, self._rows, scoring,
            block_size=self._pool.block_size, window=window,
        )  # fmt: skip
        return out[None]

    def _int64(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._pool.device)

    def _int32(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(self._pool.device)


def _put(tensor: Tensor, array: IntArray) -> None:
    tensor.copy_(torch.from_numpy(array))
