"""Which attention path and which pool a device gets."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import torch

from ...recorder.errors import BadInput
from .fast import FastAttention
from .pool import KVPool
from .step import AttentionPath


def uses_kernels(device: torch.device) -> bool:
    """Whether Triton does the work there. Raises `BadInput` if it should and isn't installed."""
    if device.type != "cuda":
        return False
    if find_spec("triton") is None:
        raise BadInput(
            "the fast attention path on CUDA is written in Triton, which isn't installed; "
            "pip install triton, or take --device cpu"
        )
    return True


def fast_path(device: torch.device, *, nan_scrubbed: bool = False) -> AttentionPath:
    """The path for steps whose masks follow from tables and lengths."""
    if not uses_kernels(device):
        return partial(FastAttention, nan_scrubbed=nan_scrubbed)
    from .triton_path import TritonAttention

    return partial(TritonAttention, nan_scrubbed=nan_scrubbed)


def pool_type(device: torch.device) -> type[KVPool]:
    if not uses_kernels(device):
        return KVPool
    from .triton_pool import TritonPool

    return TritonPool
