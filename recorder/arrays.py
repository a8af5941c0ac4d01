"""The trace's dialect of msgpack: arrays as raw little-endian numbers in ext types.

| ext | content |
|---|---|
| 1, 2, 3, 4 | signed integers of 8, 16, 32, 64 bits |
| 5, 8 | float64; float32 where that loses nothing |
| 7 | one integer outside 64 bits, two's complement |
| 9, 10, 11 | unsigned integers of 8, 16, 32 bits |
| 12 | runs: step (u8: 0 or 1), ext of the firsts (u8), ext of the counts (u8), firsts, counts |

(6 was the ragged table of format version 1.) Which type an array gets depends on its numbers alone:
equal arrays have equal bytes. What `pack_*` makes goes into `pack_value`; what msgpack gives back
goes into `unpack_*`, which raise WrongType for anything that is no such array.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, cast

import msgpack
import numpy as np

from .plain import small_enough

TYPECODES = {1: "b", 2: "h", 3: "i", 4: "q", 9: "B", 10: "H", 11: "I"}
"""ext code -> array typecode."""
SIZES = {code: array(typecode).itemsize for code, typecode in TYPECODES.items()}
_FLOAT64, _BIG_INT, _FLOAT32, _RUNS = 5, 7, 8, 12

_UNSIGNED = ((1 << 8, 9), (1 << 16, 10), (1 << 32, 11), (1 << 63, 4))
_SIGNED = ((1 << 7, 1), (1 << 15, 2), (1 << 31, 3), (1 << 63, 4))

_LONG = 48
"""From this length on, arrays are searched for runs."""
_SHORTEST = 4
"""Shorter arrays are never runs."""
_NUMBERS_PER_RUN = 4
"""Fewer on average, and an array is not kept as runs."""
_MOST_NUMBERS = 1 << 22
"""Longer arrays are not kept as runs: a damaged count would fill the memory."""


class WrongType(Exception):
    """Says what was expected; the caller knows the field."""


def _default(value: Any) -> Any:
    """What msgpack has no type for: integers outside 64 bits and numpy's scalars."""
    if isinstance(value, int):
        size = small_enough(value).bit_length() // 8 + 1
        return ext_type(_BIG_INT, value.to_bytes(size, "little", signed=True))
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


def ext_type(code: int, data: bytes) -> msgpack.ExtType:
    """As ExtType's own constructor, whose checks take longer than packing most arrays."""
    return tuple.__new__(msgpack.ExtType, (code, data))


# --- integers -------------------------------------------------------------------------------------


def pack_ints(values: Iterable[int]) -> msgpack.ExtType:
    """Runs where there are few, else raw integers of the smallest width that fits all.

    Raises ValueError beyond 64 bits.
    """
    numbers = values if isinstance(values, (tuple, list)) else tuple(values)
    count = len(numbers)
    if count < _SHORTEST or count > _MOST_NUMBERS:
        return _plain(numbers)
    first, last = numbers[0], numbers[-1]
    if count < _LONG:
        if first == last and numbers.count(first) == count:
            return _one_run(0, first, count)
        if last - first == count - 1 and tuple(numbers) == tuple(range(first, last + 1)):
            return _one_run(1, first, count)
        return _plain(numbers)
    return _in_runs(numbers) or _plain(numbers)


def _plain(numbers: tuple[int, ...] | list[int]) -> msgpack.ExtType:
    if not numbers:
        return ext_type(9, b"")
    least, most = min(numbers), max(numbers)
    if least >= 0 and most < 1 << 8:
        return ext_type(9, bytes(numbers))
    code = _code_for(least, most)
    return ext_type(code, little_endian(array(TYPECODES[code], numbers)).tobytes())


def _code_for(least: int, most: int) -> int:
    if least >= 0:
        for bound, code in _UNSIGNED:
            if most < bound:
                return code
    else:
        for bound, code in _SIGNED:
            if -bound <= least and most < bound:
                return code
    raise ValueError("an integer in an array doesn't fit into 64 bits")


def _in_runs(numbers: tuple[int, ...] | list[int]) -> msgpack.ExtType | None:
    """The array as runs of equal or of consecutive numbers, if those are few."""
    try:
        held = np.frombuffer(array("q", numbers), dtype=np.int64)
    except OverflowError:
        return None  # which `_plain` says in words
    steps = np.diff(held)
    for step in (0, 1):
        starts = np.flatnonzero(steps != step) + 1
        if (len(starts) + 1) * _NUMBERS_PER_RUN <= len(numbers):
            starts = np.concatenate(([0], starts))
            counts = np.diff(np.concatenate((starts, [len(numbers)])))
            return _runs(step, held[starts].tolist(), counts.tolist())
    return None


@lru_cache(1_024)
def _one_run(step: int, first: int, count: int) -> msgpack.ExtType:
    return _runs(step, [first], [count])


def _runs(step: int, firsts: list[int], counts: list[int]) -> msgpack.ExtType:
    packed, lengths = _plain(firsts), _plain(counts)
    head = bytes((step, packed.code, lengths.code))
    return ext_type(_RUNS, head + packed.data + lengths.data)


def unpack_ints(value: Any) -> tuple[int, ...]:
    if not isinstance(value, msgpack.ExtType):
        raise WrongType("an array of integers")
    if value.code in TYPECODES:
        return tuple(_numbers(TYPECODES[value.code], value.data))
    if value.code == _RUNS:
        return _unpack_runs(value.data)
    raise WrongType("an array of integers")


def _unpack_runs(data: bytes) -> tuple[int, ...]:
    if len(data) < 3 or data[0] > 1 or data[1] not in TYPECODES or data[2] not in TYPECODES:
        raise WrongType("an array of integers")
    step, first_code, count_code = data[:3]
    runs, left = divmod(len(data) - 3, SIZES[first_code] + SIZES[count_code])
    split = 3 + runs * SIZES[first_code]
    firsts = _numbers(TYPECODES[first_code], data[3:split])
    counts = _numbers(TYPECODES[count_code], data[split:])
    if left or (runs and min(counts) < 1) or sum(counts) > _MOST_NUMBERS:
        raise WrongType("an array of integers")
    pairs = zip(firsts, counts, strict=True)
    if step:
        return tuple(chain.from_iterable(range(first, first + n) for first, n in pairs))
    return tuple(chain.from_iterable(repeat(first, n) for first, n in pairs))


class IntPacker:
    """`pack_ints` that remembers: events of one step carry the same arrays."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], msgpack.ExtType] = {}

    def pack(self, values: Iterable[int]) -> msgpack.ExtType:
        numbers = values if type(values) is tuple else tuple(values)
        known = self._known.get(numbers)
        if known is None:
            known = self._known[numbers] = pack_ints(numbers)
        return known

    def tidy(self) -> None:
        if len(self._known) > 512:
            self._known.clear()

    def forget(self) -> None:
        self._known.clear()


# --- floats ---------------------------------------------------------------------------------------


def pack_floats(values: Iterable[float]) -> msgpack.ExtType:
    exact = array("d", values)
    short = array("f", exact)
    if array("d", short) == exact:
        return ext_type(_FLOAT32, little_endian(short).tobytes())
    exact = array("d", map(one_nan, exact))
    return ext_type(_FLOAT64, little_endian(exact).tobytes())


def one_nan(number: float) -> float:
    """The number, or the one NaN that text has too."""
    return number if number == number else math.nan


def unpack_floats(value: Any) -> tuple[float, ...]:
    if isinstance(value, msgpack.ExtType) and value.code in (_FLOAT64, _FLOAT32):
        return tuple(_numbers("d" if value.code == _FLOAT64 else "f", value.data))
    raise WrongType("an array of floats")


# --- the rest -------------------------------------------------------------------------------------


def unpack_scalar(value: Any) -> str | int:
    if type(value) is str or type(value) is int:
        return value
    if isinstance(value, msgpack.ExtType) and value.code == _BIG_INT:
        return int.from_bytes(value.data, "little", signed=True)
    raise WrongType("text or an integer")


def _numbers(typecode: str, data: bytes) -> array[Any]:
    numbers = array(typecode)
    try:
        numbers.frombytes(data)
    except ValueError:
        raise WrongType("an array of whole numbers") from None
    return little_endian(numbers)


def little_endian(numbers: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
