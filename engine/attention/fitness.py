"""Does a model really read and write its KV through us? Asked once, when it is loaded.

A model that keeps its attention to itself, or shapes it in a way that our paths don't know, would
run and be wrong. It is refused instead, with the reason.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig

from ...recorder.errors import BadInput
from .hook import IMPLEMENTATION
from .pool import LayerShape

UNKNOWN_SHAPERS = ("attention_mask", "position_bias", "softcap", "s_aux", "head_mask")
"""Arguments that change the scores; neither attention path applies them."""


BATCH_WIDE_ROPE = ("dynamic", "longrope")
"""Rotary scalings that depend on the longest row of a step: one request would alter another."""


class UnfitModel(BadInput):
    """The model can't be run through the paged cache."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"{name} can't be run through the paged cache: {why}; "
            "take a decoder with plain full attention, such as a Llama, Qwen2 or GPT-2"
        )


class GeometryProbe:
    """Stands in for a step and notes what each layer hands over."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.refusal: str | None = None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        extras: dict[str, Any],
    ) -> Tensor:
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.shapes:
            self.refusal = self.refusal or "its layers don't attend once each"
        else:
            self.shapes[layer] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        if key.shape[2] != query.shape[2]:
            self.refusal = self.refusal or "it keeps a cache of its own"
        unknown = [name for name in UNKNOWN_SHAPERS if extras.get(name) is not None]
        if unknown:
            self.refusal = self.refusal or f"its attention needs {', '.join(unknown)}"
        if extras.get("sliding_window") is not None:
            self.refusal = self.refusal or "its attention slides over a window"
        if getattr(module, "is_causal", True) is False:
            self.refusal = self.refusal or "its attention is not causal"
        out = query.new_zeros(*query.shape[:-1], value.shape[-1])
        return out.transpose(1, 2)


def layer_shapes(name: str, config: PretrainedConfig, probe: GeometryProbe) -> list[LayerShape]:
    """The shape of every layer, in order. Raises `UnfitModel` if one didn't come to us."""
    text = config.get_text_config(decoder=True)
    if text._attn_implementation != IMPLEMENTATION:
        raise UnfitModel(name, "it has attention code of its own")
    other = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if other:
        raise UnfitModel(name, f"it has layers of type {', '.join(other)}")
    if scaling := _rope_types(text) & set(BATCH_WIDE_ROPE):
        raise UnfitModel(name, f"its {scaling.pop()} rotary scaling depends on the whole batch")
    if probe.refusal is not None:
        raise UnfitModel(name, probe.refusal)
    expected = list(range(text.num_hidden_layers))
    if sorted(probe.shapes) != expected:
        raise UnfitModel(
            name, f"{len(probe.shapes)} of its {len(expected)} layers hand their attention over"
        )
    return [probe.shapes[layer] for layer in expected]


def _rope_types(config: PretrainedConfig) -> set[str]:
    """Rotary scalings in use; a configuration has one, or one per type of layer."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(p["rope_type"]) for p in (parameters, *nested) if "rope_type" in p}
