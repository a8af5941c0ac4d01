"""Request traces in Mooncake's format: lengths, arrivals and shared prefixes, without the text.

    {"timestamp": 3052, "input_length": 2287, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}

`timestamp` counts milliseconds; a hash id stands for 512 prompt tokens after all those before
them, the last one for what is left. Format and public traces: github.com/kvcache-ai/Mooncake
(Qin et al., FAST 2025). Here a line may also give its request the fields in `EXTRAS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from .fields import RULES, Rule, as_field, check, is_integer, is_number
from .lines import BadPrompts, Line, json_object, refuse_repeated
from .spec import PromptSpec
from .tokens import numbered_tokens

HASHED_TOKENS = 512
"""Tokens that one hash id stands for."""

REQUIRED: dict[str, Rule] = {
    "timestamp": Rule("a number of milliseconds from 0", lambda v: is_number(v, 0)),
    "input_length": Rule("a whole number from 1", lambda v: is_integer(v, 1)),
    "output_length": Rule("a whole number from 1", lambda v: is_integer(v, 1)),
    "hash_ids": Rule(
        "a list of whole numbers from 0, below 2**64",
        lambda v: isinstance(v, list) and all(type(i) is int and 0 <= i < 2**64 for i in v),
    ),
}

_SAID_BY_THE_FORMAT = (
    "prompt",
    "prompt_tokens",
    "max_new_tokens",
    "passphrase",
    "arrival_step",
    "arrival_s",
    "ignore_eos",
)
EXTRAS = tuple(f.name for f in fields(PromptSpec) if f.name not in _SAID_BY_THE_FORMAT)
"""Fields of ours that a line may have: request, tenant, priority, n, ..."""


def is_mooncake(line: Line) -> bool:
    """Whether a file that begins with this line is a Mooncake trace."""
    try:
        given = json.loads(line.text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(given, dict) or "prompt" in given or "prompt_tokens" in given:
        return False
    return not REQUIRED.keys().isdisjoint(given)


def read_mooncake(lines: Iterable[Line], first: int | None = None) -> tuple[PromptSpec, ...]:
    """In the order of arrival, which counts from the first request's; `first`: only that many.

    Each runs to its `output_length`, whatever the model says. Raises `BadPrompts` for any bad line.
    """
    asked = sorted(_asked(lines), key=lambda one: one.timestamp)[:first]
    return tuple(one.spec(asked[0].timestamp) for one in asked)


def prompt_tokens(hash_ids: Sequence[int], input_length: int) -> tuple[int, ...]:
    """[input_length]; equal leading ids give equal leading tokens."""
    tokens: list[int] = []
    for hash_id in hash_ids:
        tokens += numbered_tokens(hash_id, min(HASHED_TOKENS, input_length - len(tokens)))
    return tuple(tokens)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A line that was read. Its tokens are made when it is known to be wanted: a public trace has
    hundreds of millions."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    extras: dict[str, Any]

    def spec(self, start: float) -> PromptSpec:
        return PromptSpec(
            prompt_tokens=prompt_tokens(self.hash_ids, self.input_length),
            max_new_tokens=self.output_length,
            arrival_s=(self.timestamp - start) / 1000,
            ignore_eos=True,
            **self.extras,
        )


def _asked(lines: Iterable[Line]) -> Iterator[_Asked]:
    seen: dict[str, int] = {}
    for count, line in enumerate(lines):
        given = json_object(line, "`timestamp`, `input_length`, `output_length` and `hash_ids`")
        _check(line.where, given)
        extras: dict[str, Any] = {"request": f"r{count}"}
        extras |= {key: as_field(key, value) for key, value in given.items() if key in EXTRAS}
        refuse_repeated(line, extras["request"], seen)
        yield _Asked(**{name: given[name] for name in REQUIRED}, extras=extras)


def _check(where: str, given: dict[str, Any]) -> None:
    _refuse_likely_slips(where, given)
    for name, rule in REQUIRED.items():
        if name not in given:
            raise BadPrompts(f"{where} has no {name!r}; give {rule.allowed}")
        if not rule.fits(given[name]):
            shown = json.dumps(given[name])[:60]
            raise BadPrompts(f"{where}: {name} can't be {shown}; give {rule.allowed}")
    check(where, {name: value for name, value in given.items() if name in EXTRAS})
    blocks = -(-given["input_length"] // HASHED_TOKENS)
    if len(given["hash_ids"]) != blocks:
        raise BadPrompts(
            f"{where}: input_length {given['input_length']} takes {blocks} hash_ids of "
            f"{HASHED_TOKENS} tokens, not {len(given['hash_ids'])}; is it another block size?"
        )


def _refuse_likely_slips(where: str, given: dict[str, Any]) -> None:
    """Traces carry fields of their makers (turn, type, ...), which are passed over."""
    known = (*REQUIRED, *EXTRAS)
    for name in given:
        if name in RULES and name not in known:
            raise BadPrompts(f"{where}: a Mooncake line has no {name!r}; leave it out")
        near = get_close_matches(name, known, 1, cutoff=0.85)
        if near and near[0] not in given:
            raise BadPrompts(f"{where}: there is no field {name!r}; did you mean {near[0]!r}?")
