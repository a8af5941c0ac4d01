"""The trace's dialect of msgpack: arrays as raw little-endian numbers in ext types.

| ext | content |
|---|---|
| 1, 2, 3, 4 | signed integers of 8, 16, 32, 64 bits, the smallest that fits all |
| 5 | float64 |
| 6 | ragged table: ext of the lengths (u8), ext of the flat numbers (u8), rows (u32), then both |
| 7 | one integer outside 64 bits, two's complement |

What `pack_*` makes goes into `pack_value`; what msgpack gives back goes into `unpack_*`, which
raise WrongType for anything that the matching `pack_*` doesn't make.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any, cast

import msgpack
import numpy as np

from .plain import small_enough

_TYPECODES = {1: "b", 2: "h", 3: "i", 4: "q"}
"""ext code -> array typecode, narrowest first."""
_FLOATS, _TABLE, _BIG_INT = 5, 6, 7
_TABLE_HEAD = struct.Struct("<BBI")


class WrongType(Exception):
    """Says what was expected; the caller knows the field."""


def _default(value: Any) -> Any:
    """What msgpack has no type for: integers outside 64 bits and numpy's scalars."""
    if isinstance(value, int):
        size = small_enough(value).bit_length() // 8 + 1
        return msgpack.ExtType(_BIG_INT, value.to_bytes(size, "little", signed=True))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__} can't be stored")


def value_packer() -> Callable[[Any], bytes]:
    """Packs one msgpack value after the other, in the trace's dialect (integers of any width).
    For one thread: it keeps its buffer."""
    return cast(Callable[[Any], bytes], msgpack.Packer(default=_default).pack)


def pack_value(value: Any) -> bytes:
    """One value, as `value_packer` packs it."""
    return value_packer()(value)


def pack_ints(values: Iterable[int]) -> msgpack.ExtType:
    """Raw integers of the smallest width that fits all. Raises ValueError beyond 64 bits."""
    numbers = values if isinstance(values, (tuple, list)) else tuple(values)
    for code, typecode in _TYPECODES.items():
        try:
            packed = array(typecode, numbers)
        except OverflowError:
            continue
        return msgpack.ExtType(code, _little_endian(packed).tobytes())
    raise ValueError("an integer in an array doesn't fit into 64 bits")


def pack_floats(values: Iterable[float]) -> msgpack.ExtType:
    return msgpack.ExtType(_FLOATS, _little_endian(array("d", values)).tobytes())


def pack_table(rows: tuple[tuple[int, ...], ...]) -> msgpack.ExtType:
    lengths = pack_ints(tuple(map(len, rows)))
    numbers: list[int] = []
    for row in rows:
        numbers += row
    flat = pack_ints(numbers)
    head = _TABLE_HEAD.pack(lengths.code, flat.code, len(rows))
    return msgpack.ExtType(_TABLE, head + lengths.data + flat.data)


def unpack_ints(value: Any) -> tuple[int, ...]:
    if not isinstance(value, msgpack.ExtType) or value.code not in _TYPECODES:
        raise WrongType("an array of integers")
    return tuple(_numbers(_TYPECODES[value.code], value.data))


def unpack_floats(value: Any) -> tuple[float, ...]:
    if not isinstance(value, msgpack.ExtType) or value.code != _FLOATS:
        raise WrongType("an array of floats")
    return tuple(_numbers("d", value.data))


def _numbers(typecode: str, data: bytes) -> array[Any]:
    numbers = array(typecode)
    numbers.frombytes(data)
    return _little_endian(numbers)


def unpack_table(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, msgpack.ExtType) or value.code != _TABLE:
        raise WrongType("a table")
    if len(value.data) < _TABLE_HEAD.size:
        raise WrongType("a whole table")
    lengths_code, flat_code, rows = _TABLE_HEAD.unpack_from(value.data)
    split = _TABLE_HEAD.size + rows * array(_TYPECODES[lengths_code]).itemsize
    lengths = _numbers(_TYPECODES[lengths_code], value.data[_TABLE_HEAD.size : split])
    flat = tuple(_numbers(_TYPECODES[flat_code], value.data[split:]))
    if len(lengths) != rows or (rows and min(lengths) < 0) or sum(lengths) != len(flat):
        raise WrongType("a table whose lengths add up")
    return tuple(flat[a:b] for a, b in pairwise(accumulate(lengths, initial=0)))


def unpack_scalar(value: Any) -> str | int:
    if type(value) is str or type(value) is int:
        return value
    if isinstance(value, msgpack.ExtType) and value.code == _BIG_INT:
        return int.from_bytes(value.data, "little", signed=True)
    raise WrongType("text or an integer")


def _little_endian(numbers: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
