"""What a layer's attention is like, as it hands itself over, and the KV groups that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .pool import LayerShape


@dataclass(frozen=True, slots=True)
class LayerTraits:
    """One layer's attention, as observed when the model was loaded."""

    shape: LayerShape
    scaling: float
    window: int | None = None
    """Query q sees key k iff q - k < window; None = all keys before it."""
    softcap: float | None = None
    sinks: bool = False

    @property
    def group(self) -> tuple[LayerShape, int | None]:
        """Layers that agree in this store as much and let go of it at the same time."""
        return self.shape, self.window


def kv_groups(layers: Sequence[LayerTraits]) -> list[dict[str, Any]]:
    """The groups as `RunStarted.groups` lists them: full attention first, then by first layer.

    `window` only where there is one, `value_dim` only where it isn't `head_dim`.
    """
    kinds = dict.fromkeys(layer.group for layer in layers)
    return [
        _described(*kind, [n for n, layer in enumerate(layers) if layer.group == kind])
        for kind in sorted(kinds, key=lambda kind: kind[1] is not None)
    ]


def _described(shape: LayerShape, window: int | None, layers: list[int]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "layers": layers,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
    }
    if shape.value_dim != shape.head_dim:
        described["value_dim"] = shape.value_dim
    if window is not None:
        described["window"] = window
    return described
