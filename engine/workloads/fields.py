"""The fields that one line may give its request, and what each may hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .lines import BadPrompts

LARGEST = 2**63 - 1
"""Integers go into the trace as 64 bits."""

MOST_SAMPLES = 16384
"""As in vLLM (VLLM_MAX_N_SEQUENCES): beyond it `n` is a slip of the pen."""


LAST_STEP = 10**12
"""No run gets there; steps, too, must have room in 64 bits, with a run behind the last arrival."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`allowed` ends the sentence "give ..."."""

    allowed: str
    fits: Callable[[Any], bool]


def check(where: str, given: Mapping[str, Any]) -> None:
    """Raises `BadPrompts` for the first field with a value that it can't have.

    All of `given` must be known fields.
    """
    for name, value in given.items():
        if not RULES[name].fits(value):
            shown = json.dumps(value)[:60]
            raise BadPrompts(f"{where}: {name} can't be {shown}; give {RULES[name].allowed}")
    if given.get("arrival_s") is not None and "arrival_step" in given:
        raise BadPrompts(f"{where}: give either `arrival_step` or `arrival_s`, not both")


def as_field(name: str, value: Any) -> Any:
    """A checked JSON value as `PromptSpec` holds it."""
    match name:
        case "prompt_tokens":
            return tuple(value)
        case "extra_keys":
            return tuple((0, key) if _is_name(key) else tuple(key) for key in value or ())
        case _:
            return value


def unknown_field(where: str, name: str, known: tuple[str, ...]) -> BadPrompts:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return BadPrompts(f"{where}: there is no field {name!r}; {hint}")


def is_integer(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= LARGEST


def is_number(value: Any, least: float) -> bool:
    """A finite one; JSON as Python reads it may also say NaN and Infinity."""
    return type(value) in (int, float) and abs(value) <= LARGEST and value >= least


def _is_text(value: Any) -> bool:
    """Half of a surrogate pair is no text: no file can hold it."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_name(value: Any) -> bool:
    return _is_text(value) or is_integer(value, -LARGEST)


def _is_extra_key(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and is_integer(value[0], 0) and _is_name(value[1])
    return _is_name(value)


def _integer(least: int, most: int = LARGEST) -> Callable[[Any], bool]:
    return lambda value: is_integer(value, least) and value <= most


def _optional(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_SCALAR = Rule("a text or a whole number", _optional(_is_name))
_COUNT = Rule("a whole number from 1", _optional(_integer(1)))

RULES: Mapping[str, Rule] = {
    "request": Rule(
        "a printable text", lambda v: _is_text(v) and bool(v.strip()) and v.isprintable()
    ),
    "prompt": Rule("a text", lambda v: _is_text(v) and bool(v)),
    "prompt_tokens": Rule(
        "a list of token numbers",
        lambda v: isinstance(v, list) and all(is_integer(token, -LARGEST) for token in v),
    ),
    "max_new_tokens": _COUNT,
    "tenant": _SCALAR,
    "session": _SCALAR,
    "external_id": _SCALAR,
    "passphrase": Rule("a text", _optional(_is_text)),
    "adapter": _SCALAR,
    "extra_keys": Rule(
        "a list of keys, or of [first position, key]",
        _optional(lambda v: isinstance(v, list) and all(map(_is_extra_key, v))),
    ),
    "priority": Rule("a whole number; lower comes sooner", _integer(-LARGEST)),
    "n": Rule(f"a whole number from 1 to {MOST_SAMPLES}", _integer(1, MOST_SAMPLES)),
    "temperature": Rule("a number from 0; 0 is greedy", lambda v: is_number(v, 0)),
    "top_k": Rule("a whole number from 0; 0 leaves nothing out", _integer(0)),
    "top_p": Rule(
        "a number above 0, up to 1; 1 leaves nothing out",
        lambda v: is_number(v, 0) and 0 < v <= 1,
    ),
    "pin": Rule("true or false", lambda v: type(v) is bool),
    "retention": Rule("a whole number; higher stays longer", _integer(-LARGEST)),
    "arrival_step": Rule(f"a whole number from 1 to {LAST_STEP}", _integer(1, LAST_STEP)),
    "arrival_s": Rule("a number of seconds from 0", _optional(lambda v: is_number(v, 0))),
    "abort_step": _COUNT,
    "ignore_eos": Rule("true or false", lambda v: type(v) is bool),
}
"""Every field of `PromptSpec`."""
