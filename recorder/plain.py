"""Values of fields whose shape the contract leaves open (config, sampling, choice, unknown).

They are what JSON can say: None, bool, int, float, str, list, map with str keys. Bytes become
lower-case hex, and floats that are not finite their names, as in JSON lines. Nothing else gets into
a trace, so that every trace can be exported, and is the same when it is imported again.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

MAX_DEPTH = 64
"""Deeper nesting is an accident or an attack; msgpack and json have limits of their own."""

MAX_INT_BITS = 512
"""Keys and digests are at most SHA-512; beyond it, decimal text is no longer cheap to parse."""


def canonical(value: Any, depth: int = 0) -> Any:
    """A copy with maps in key order, tuples as lists and numpy scalars as Python's own.

    Raises ValueError, saying what is wrong, for anything that is not a plain value.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return small_enough(value)
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, (list, tuple)):
        return [canonical(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: canonical(value[key], depth + 1) for key in _sorted_keys(value)}
    if isinstance(value, np.generic):
        return canonical(value.item(), depth + 1)
    raise ValueError(f"a value of type {type(value).__name__} can't be stored")


def small_enough(value: int) -> int:
    if value.bit_length() > MAX_INT_BITS:
        raise ValueError(f"an integer of more than {MAX_INT_BITS} bits")
    return value


def _text(value: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text with half a surrogate pair") from None
    return value


def _sorted_keys(value: dict[Any, Any]) -> list[str]:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"the map key {key!r} is not text")
        _text(key)
    return sorted(value)
