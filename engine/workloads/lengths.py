"""How many tokens: distributions that a word on the command line can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from random import Random
from typing import Protocol

from ...recorder.errors import BadInput

LONGEST = 1_000_000
"""Tokens; draws are cut to it, since the tails of some distributions have no end."""

FORMS = "N, A..B, exp:MEAN or lognormal:MEDIAN:SIGMA"


class Lengths(Protocol):
    """A distribution over 1, 2, ..., `LONGEST`."""

    def draw(self, rng: Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `least` to `most` as often; always the same where they are equal."""

    least: int
    most: int

    def draw(self, rng: Random) -> int:
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Exponential:
    mean: float

    def draw(self, rng: Random) -> int:
        return _whole(rng.expovariate(1 / self.mean))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half of all lengths are below `median`; `sigma` is the deviation of their logarithm."""

    median: float
    sigma: float

    def draw(self, rng: Random) -> int:
        return _whole(rng.lognormvariate(log(self.median), self.sigma))


def lengths_of(name: str, text: str) -> Lengths:
    """`256`, `64..512`, `exp:256` or `lognormal:256:0.8`.

    Raises `BadInput`, calling the value by `name`.
    """
    word, *numbers = text.split(":")
    try:
        return _FORMS[word](*numbers) if numbers else _uniform(*text.split(".."))
    except (KeyError, ValueError, TypeError):
        raise BadInput(
            f"{name} can't be {text!r}; give a number of tokens (1 to {LONGEST}) as {FORMS}"
        ) from None


def _uniform(least: str, most: str | None = None) -> Lengths:
    low, high = int(least), int(most if most is not None else least)
    if not 1 <= low <= high <= LONGEST:
        raise ValueError
    return Uniform(low, high)


def _exponential(mean: str) -> Lengths:
    return Exponential(_positive(mean))


def _lognormal(median: str, sigma: str) -> Lengths:
    return LogNormal(_positive(median), _positive(sigma))


_FORMS: Mapping[str, Callable[..., Lengths]] = {"exp": _exponential, "lognormal": _lognormal}


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= LONGEST:
        raise ValueError
    return value


def _whole(value: float) -> int:
    return min(max(round(value), 1), LONGEST)
