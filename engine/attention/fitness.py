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
from .traits import LayerTraits

KNOWN_ARGUMENTS = ("position_ids", "sliding_window", "softcap", "s_aux")
"""What a layer may hand over besides queries, keys and values: both attention paths apply the last
three, and positions are in the queries and keys already."""

KNOWN_LAYERS = ("full_attention", "sliding_attention")

BATCH_WIDE_ROPE = ("dynamic", "longrope")
"""Rotary scalings that depend on the longest row of a step: one request would alter another."""


class UnfitModel(BadInput):
    """The model can't be run through the paged cache."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"{name} can't be run through the paged cache: {why}; "
            "take a decoder such as a Llama, Qwen, Mistral, Gemma, Phi-3, gpt-oss or GPT-2"
        )


class GeometryProbe:
    """Stands in for a step and notes what each layer hands over."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerTraits] = {}
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
        why = self._unfit(module, query, key, extras)
        if why is None:
            self.layers[module.layer_idx] = LayerTraits(  # pyright: ignore[reportArgumentType]
                shape=LayerShape(key.shape[1], key.shape[-1], value.shape[-1]),
                scaling=scaling,
                window=extras.get("sliding_window"),
                softcap=extras.get("softcap"),
                sinks=extras.get("s_aux") is not None,
            )
        self.refusal = self.refusal or why
        out = query.new_zeros(*query.shape[:-1], value.shape[-1])
        return out.transpose(1, 2)

    def _unfit(
        self, module: nn.Module, query: Tensor, key: Tensor, extras: dict[str, Any]
    ) -> str | None:
        """What of this call neither path can do; None if nothing."""
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.layers:
            return "its layers don't attend once each"
        if key.shape[2] != query.shape[2]:
            return "it keeps a cache of its own"
        if getattr(module, "is_causal", True) is False or extras.get("is_causal") is False:
            return "its attention is not causal"
        unknown = sorted(name for name, value in extras.items() if _matters(name, value))
        return f"its attention needs {', '.join(unknown)}" if unknown else None


def _matters(name: str, value: object) -> bool:
    """Whether an argument that we don't know could change the scores; switches don't."""
    return name not in KNOWN_ARGUMENTS and value is not None and not isinstance(value, bool)


def layer_traits(name: str, config: PretrainedConfig, probe: GeometryProbe) -> list[LayerTraits]:
    """The traits of every layer, in order. Raises `UnfitModel` if one didn't come to us."""
    text = config.get_text_config(decoder=True)
    if text._attn_implementation != IMPLEMENTATION:
        raise UnfitModel(name, "it has attention code of its own")
    other = sorted(set(getattr(text, "layer_types", None) or ()) - set(KNOWN_LAYERS))
    if other:
        raise UnfitModel(name, f"it has layers of type {', '.join(other)}")
    if scaling := _rope_types(text) & set(BATCH_WIDE_ROPE):
        raise UnfitModel(name, f"its {scaling.pop()} rotary scaling depends on the whole batch")
    if probe.refusal is not None:
        raise UnfitModel(name, probe.refusal)
    expected = list(range(text.num_hidden_layers))
    if sorted(probe.layers) != expected:
        raise UnfitModel(
            name, f"{len(probe.layers)} of its {len(expected)} layers hand their attention over"
        )
    _refuse_other_windows(name, text, probe.layers)
    return [probe.layers[layer] for layer in expected]


def _refuse_other_windows(
    name: str, config: PretrainedConfig, layers: dict[int, LayerTraits]
) -> None:
    """A model's own masks follow its configuration; what its layers hand over must agree with it.

    The trial's prompts are shorter than most windows, so it can't tell.
    """
    of_all: int | None = getattr(config, "sliding_window", None)
    declared = hasattr(type(config), "sliding_window")  # else nothing looks at it
    if not declared or getattr(config, "use_sliding_window", None) is False:
        of_all = None
    types = getattr(config, "layer_types", None) or ()
    for number, layer in layers.items():
        expected = None if types and types[number] == "full_attention" else of_all
        if layer.window != expected:
            raise UnfitModel(
                name,
                f"layer {number} hands over a window of {_tokens(layer.window)}, "
                f"and its configuration says {_tokens(expected)}",
            )


def _tokens(window: int | None) -> str:
    return "all tokens" if window is None else f"{window} tokens"


def _rope_types(config: PretrainedConfig) -> set[str]:
    """Rotary scalings in use; a configuration has one, or one per type of layer."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(p["rope_type"]) for p in (parameters, *nested) if "rope_type" in p}
