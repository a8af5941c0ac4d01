"""Data types of the KV cache: which layer has which."""

from __future__ import annotations

from .config import KV_DTYPES, BadSwitch


def layer_dtypes(kv_dtype: str, num_layers: int) -> tuple[str, ...]:
    """`EngineConfig.kv_dtype` for each of a model's layers.

    Raises `BadSwitch` if it lists another number of layers than the model has.
    """
    listed = tuple(kv_dtype.split(","))
    if len(listed) == 1:
        return listed * num_layers
    if len(listed) != num_layers:
        raise BadSwitch(
            f"kv_dtype lists {len(listed)} layers and the model has {num_layers}; give one of "
            f"{', '.join(KV_DTYPES)} for all of them, or a comma list of {num_layers}."
        )
    return listed
