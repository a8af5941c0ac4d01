"""Data types of the KV cache: which layer has which, and what they take."""

from __future__ import annotations

from .config import KV_DTYPES, BadSwitch

SCALE_BYTES = 4
"""int8 and int4 keep a float32 scale per token and head, for keys and for values."""

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


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


def vector_bytes(kv_dtype: str, model_dtype: str, dim: int) -> int:
    """Bytes that the key (or value) of one token and one head takes, its scale included."""
    match kv_dtype:
        case "int8":
            return dim + SCALE_BYTES
        case "int4":
            return -(-dim // 2) + SCALE_BYTES
        case "auto":
            return dim * _BYTES[model_dtype]
        case _:
            return dim * _BYTES[kv_dtype]
