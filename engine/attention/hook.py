"""Where a transformers model hands its attention over to us.

`AttentionInterface` lets any model call a registered function on every layer, and extra keyword
arguments of `model(...)` reach it. So the model's own code stays as it is: it computes queries,
keys and values, and what is read and written is the step's business.

No mask function is registered beside it on purpose: transformers then builds no mask.
https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

IMPLEMENTATION = "kvrewind_paged"
"""Name of our function among transformers' attention implementations."""

STEP_ARGUMENT = "kvrewind_step"
"""Keyword argument of `model(...)` that carries the step to every layer."""


class LayerCall(Protocol):
    """What a step does when a layer attends."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        extras: dict[str, Any],
    ) -> Tensor:
        """query [lines, heads, longest, dim], key and value [lines, kv_heads, longest, dim] ->
        [lines, longest, heads, dim]; a packed step is one line."""
        ...


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    kvrewind_step: LayerCall | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The registered function; signature as transformers calls it. TypeError without a step."""
    if kvrewind_step is None:
        raise TypeError(f"{type(module).__name__} doesn't pass keyword arguments on")
    extras["attention_mask"] = attention_mask
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return kvrewind_step(module, query, key, value, scale, extras), None


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers; harmless when repeated."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)
