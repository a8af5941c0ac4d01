"""Linear layers of a model on the CPU, computed from weights laid out for the CPU's vectors.

A step of a few rows reads every weight once and computes little with each, so what counts is how
fast they are read. oneDNN packs a weight once, tile by tile; torch's own call takes it as it comes.
SmolLM2-135M, float32, one core: 1.2 to 1.5 times as fast for the layers' products of 2 to 256 rows,
1.5 to 2.5 times for the logits (`benchmarks/README.md`).

The packed copy costs as much memory as the weights. torch uses the same two operators when it
compiles a model with frozen weights (`torch/_inductor/fx_passes/mkldnn_fusion.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .huge_pages import use_huge_pages

MOST_BYTES = 2**31
"""Of linear weights; a larger model is left as it is, so as not to take that much memory twice."""

LEAST_NUMBERS = 100_000
"""Of a weight; a smaller one stays in the CPU's cache, and oneDNN's call takes a little longer."""


class PackedWeights:
    """Of a model's `nn.Linear` layers in float32; the layers take them while `used` is entered.

    Elsewhere they compute as before, from their weights. Empty where there is nothing to gain,
    which is never an error.
    """

    def __init__(self, model: nn.Module) -> None:
        self._now = _Now()
        layers = [m for m in model.modules() if type(m) is nn.Linear and _gains(m.weight)]
        if sum(layer.weight.nbytes for layer in layers) <= MOST_BYTES:
            packed = [self._take_over(layer) for layer in layers]
            use_huge_pages(map(_memory, packed))

    @contextmanager
    def used(self) -> Iterator[None]:
        """In this thread."""
        self._now.used = True
        try:
            yield
        finally:
            self._now.used = False

    def _take_over(self, layer: nn.Linear) -> Tensor:
        """The packed weight that the layer reads from now on."""
        now, plain, bias = self._now, layer.forward, layer.bias
        with torch.no_grad():
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)

        def forward(input: Tensor) -> Tensor:
            """[..., K] -> [..., N]"""
            if not now.used:
                return plain(input)
            return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")

        layer.forward = forward
        return packed


class _Now(threading.local):
    used = False


def _memory(packed: Tensor) -> tuple[int, int]:
    return torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)


def _gains(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return on_cpu and weight.dtype == torch.float32 and weight.numel() >= LEAST_NUMBERS
