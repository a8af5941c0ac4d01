"""Generated traffic: requests that arrive at random, some with a common beginning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random
from typing import Any

from ...recorder.errors import BadInput
from .lengths import FORMS, Lengths, Uniform, lengths_of
from .spec import PromptSpec
from .tokens import synthetic_tokens

URGENT = -1
"""Priority of the requests that go before the others, whose priority is 0."""

MOST_REQUESTS = 1_000_000

_PROMPT, _OUTPUT, _PREFIX = Uniform(64, 512), Uniform(16, 128), Uniform(256, 256)

HELP = (
    "rate=PER_SECOND,count=N,prompt=LENGTHS,output=LENGTHS,prefix=LENGTHS,prefixes=N,"
    f"shared=SHARE,tenants=N,urgent=SHARE (any of them; LENGTHS: {FORMS})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTraffic:
    """`count` requests, independent of each other, `rate` a second on average.

    `shared` of them (0 to 1) begin with one of `prefixes` common prefixes, each of a length drawn
    once from `prefix`; `prompt` counts a request's own tokens behind that. They come from
    `tenants` tenants (t0, t1, ...; one tenant has no name), and `urgent` of them (0 to 1) have
    priority -1. Every request runs to its `output`.
    """

    rate: float = 4.0
    count: int = 100
    prompt: Lengths = _PROMPT
    output: Lengths = _OUTPUT
    prefix: Lengths = _PREFIX
    prefixes: int = 4
    shared: float = 0.5
    tenants: int = 1
    urgent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> PoissonTraffic:
        """From `rate=8,count=200,...` (`HELP`). Raises `BadInput`, naming the part."""
        values: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, equals, value = part.partition("=")
            name = name.strip()
            if name not in _PARSERS or not equals:
                raise BadInput(_unknown(name, part))
            if name in values:
                raise BadInput(f"--poisson names {name} twice; leave one out")
            values[name] = _PARSERS[name](f"{name} of --poisson", value.strip())
        return cls(**values)

    def specs(self, seed: int) -> tuple[PromptSpec, ...]:
        """The same requests for the same seed, in the order of arrival."""
        return tuple(self._draw(Random(f"poisson {seed}"), seed))

    def _draw(self, rng: Random, seed: int) -> Iterator[PromptSpec]:
        prefixes = [
            synthetic_tokens(f"prefix {seed} {i}", self.prefix.draw(rng))
            for i in range(self.prefixes)
        ]
        now = 0.0
        for i in range(self.count):
            now += rng.expovariate(self.rate)
            begun = prefixes and rng.random() < self.shared
            prefix = rng.choice(prefixes) if begun else ()
            own = synthetic_tokens(f"prompt {seed} {i}", self.prompt.draw(rng))
            yield PromptSpec(
                request=f"r{i}",
                prompt_tokens=prefix + own,
                max_new_tokens=self.output.draw(rng),
                tenant=f"t{rng.randrange(self.tenants)}" if self.tenants > 1 else None,
                priority=URGENT if rng.random() < self.urgent else 0,
                arrival_s=now,
                ignore_eos=True,
            )


def _unknown(name: str, part: str) -> str:
    if name in _PARSERS:
        return f"--poisson needs a value for {name}, as in {name}=1"
    near = get_close_matches(name, _PARSERS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_PARSERS)}"
    return f"--poisson can't take {part!r}; {hint}"


def _rate(name: str, text: str) -> float:
    value = _number(name, text)
    if not 0 < value < math.inf:
        raise BadInput(f"{name} must be above 0, not {text}")
    return value


def _share(name: str, text: str) -> float:
    value = _number(name, text)
    if not 0 <= value <= 1:
        raise BadInput(f"{name} must be from 0 to 1, not {text}")
    return value


def _count(name: str, text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= int(text[:9]) <= MOST_REQUESTS or len(text) > 9:
        raise BadInput(f"{name} must be a whole number from {least} to {MOST_REQUESTS}, not {text}")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{name} must be a number, not {text!r}") from None


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "rate": _rate,
    "count": _count,
    "prompt": lengths_of,
    "output": lengths_of,
    "prefix": lengths_of,
    "prefixes": lambda name, text: _count(name, text, least=0),
    "shared": _share,
    "tenants": _count,
    "urgent": _share,
}
