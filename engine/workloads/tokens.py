"""Tokens that stand for text nobody has: a function of their label, equal on every machine."""

from __future__ import annotations

from hashlib import shake_256

FIRST_TOKEN = 15
ALPHABET = 64
"""Ids 15 to 78: in the canary's vocabulary letters and pieces of words, so that no sentence comes
about by chance; every real model has them too."""

_DIGIT_OF_BYTE = bytes(FIRST_TOKEN + (byte & (ALPHABET - 1)) for byte in range(256))
_DIGITS = 11
"""Digits of base 64 that hold 64 bits."""


def synthetic_tokens(label: str, count: int) -> tuple[int, ...]:
    """`count` tokens; those of a longer count begin with those of a shorter one."""
    return tuple(shake_256(label.encode()).digest(count).translate(_DIGIT_OF_BYTE))


def numbered_tokens(number: int, count: int) -> tuple[int, ...]:
    """As `synthetic_tokens`, and the first 11 spell the number (0 to 2**64 - 1), lowest digit
    first: two numbers differ within a block of the cache, whatever its size from 11 on."""
    digits = (FIRST_TOKEN + (number >> 6 * i) % ALPHABET for i in range(_DIGITS))
    return (*digits, *synthetic_tokens(f"block {number}", count))[:count]
