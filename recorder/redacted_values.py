"""What a redacted trace tells of values whose shape or wording the contract leaves open.

A number under a name that we know, or a plain word, says how the engine was set; all else becomes
a keyed hash, so that what was equal stays equal, or is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgpack

from .decision import DecisionId
from .events import Scalar
from .plain import canonical


class Hashes(Protocol):
    """What stands for a value."""

    def tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]: ...

    def scalar(self, role: Any, value: Scalar) -> Scalar: ...


class Redacts(Protocol):
    """What these functions need of a redactor."""

    @property
    def hashes(self) -> Hashes: ...

    @property
    def has_clear_names(self) -> bool: ...

    def name(self, name: Scalar) -> Scalar: ...


HIDDEN = "redacted"

_WORD = re.compile(r"[A-Za-z0-9_.:+=,-]{1,64}")
_TELLTALE = re.compile(
    r"key|token|secret|passw|auth|credential|path|file|dir|url|host|user|prompt|text|template|stop",
    re.IGNORECASE,
)
"""A setting of such a name may hold what nobody should read."""

_SAMPLING = frozenset(
    {
        "temperature", "top_k", "top_p", "min_p", "n", "best_of", "seed", "ignore_eos", "pin",
        "retention", "max_tokens", "min_tokens", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "length_penalty", "logprobs",
    }
)  # fmt: skip

_REASONS = re.compile(
    r"[A-Za-z0-9_-]{1,40}"
    r"|cut to a whole \w+|not aligned to a block|other (epoch|tenant|adapter)|never seen"
    r"|other extra key at \d+|first differing token at \d+"
    r"|the run was ended by [a-z-]+ at \d+:\d+"
)
"""One word, or what our own engine and checks say."""

_DECISION = re.compile(r"[a-z0-9_-]+(\+[a-z0-9]+)?(@[0-9]+)?:.+:[0-9]+:[0-9]+", re.DOTALL)

_NO_TEXT = frozenset({"scrub", "staging", "replay"})
_NUMBERS = frozenset(
    {
        "admit", "share", "acquire", "reuse", "free", "trim", "publish", "fork", "copy", "retire",
        "rollback", "load", "store", "ready", "epoch", "reset",
    }
)  # fmt: skip


def settings(_: Redacts, value: Mapping[str, Any]) -> dict[str, Any]:
    """A map of switches or versions: numbers, and single words that name no secret or place."""
    return {name: _setting(name, value[name]) for name in value}


def _setting(name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            plain = _WORD.fullmatch(value) and not _TELLTALE.search(name)
            return value if plain else HIDDEN
        case list() | tuple() if not _TELLTALE.search(name):
            return [_setting(name, item) for item in value]
        case dict():
            return {inner: _setting(f"{name}.{inner}", item) for inner, item in value.items()}
        case _:
            return HIDDEN


def sampling(redactor: Redacts, value: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers under known names; the rest (stop words, biased tokens, grammars) as one hash
    each, so that two requests with the same settings still have the same."""
    return {name: _sampled(redactor, name, value[name]) for name in value}


def _sampled(redactor: Redacts, name: str, value: Any) -> Any:
    if name in _SAMPLING and (value is None or isinstance(value, (bool, int, float))):
        return value
    return opaque(redactor, value)


def opaque(redactor: Redacts, value: Any) -> Scalar:
    """One keyed hash of a whole value."""
    packed: bytes = msgpack.packb(canonical(value), default=str) or b""
    return redactor.hashes.scalar("opaque", packed.hex())


def extra_keys(redactor: Redacts, value: list[Any]) -> list[Any]:
    """Digests of images and salts of caches: positions stay, keys are hashed.

    Those of one position are put into the order in which the engine sorts them.
    """
    hashed: list[tuple[int, Scalar, bool]] = []
    for entry in value:
        is_pair = isinstance(entry, (list, tuple)) and len(entry) == 2
        position, key = entry if is_pair else (0, entry)
        if not isinstance(position, int) or not isinstance(key, (str, int)):
            return [opaque(redactor, value)]
        hashed.append((position, redactor.hashes.scalar("key", key), is_pair))
    hashed.sort(key=lambda entry: (entry[0], repr(entry[1])))
    return [[position, key] if is_pair else key for position, key, is_pair in hashed]


def choice(redactor: Redacts, about: str, value: Any) -> Any:
    """What was decided: numbers of blocks and counts stay, keys are hashed, and what a decision
    of an unknown kind chose is one hash."""
    if value is None or isinstance(value, bool):
        return value
    if about.partition("-")[0] in _NO_TEXT:  # scrub-evicted is one too
        return numbers_and_words(value)
    if about not in _NUMBERS:
        return opaque(redactor, value)
    if isinstance(value, Mapping):
        return {name: _chosen(redactor, item) for name, item in value.items()}
    return _chosen(redactor, value)


def _chosen(redactor: Redacts, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return redactor.hashes.scalar("key", value)
    return opaque(redactor, value)


def numbers_and_words(value: Any) -> Any:
    return _walked(value, lambda text: text if _WORD.fullmatch(text) else HIDDEN)


def numbers(_: Redacts, value: Any) -> Any:
    return _walked(value, lambda _: HIDDEN)


def _walked(value: Any, text: Callable[[str], str]) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return text(value)
        case list() | tuple():
            return [_walked(item, text) for item in value]
        case dict():
            return {name: _walked(item, text) for name, item in value.items()}
        case _:
            return HIDDEN


def reason(redactor: Redacts, value: str) -> str:
    return value if _REASONS.fullmatch(value) else HIDDEN


def model_name(_: Redacts, value: str) -> str:
    """The last part of a path: where it lies may name whose it is."""
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1] or HIDDEN


def decision_id(redactor: Redacts, value: str) -> str:
    """(kind, request, index, ordinal) with the request as it is named elsewhere."""
    if redactor.has_clear_names and _DECISION.fullmatch(value):
        return value
    try:
        id = DecisionId.parse(value)
    except ValueError:
        return str(redactor.hashes.scalar("opaque", value))
    if id.kind == "epoch":  # of no request
        return value
    request = str(redactor.name(id.request))
    return str(DecisionId(id.kind, request, id.index, id.ordinal, id.group, id.occasion))


def rough(_: Redacts, value: float) -> float:
    """One digit, rounded towards 0: enough to compare with a threshold of one digit, too little
    to tell one text from another by it."""
    if value == 0 or not math.isfinite(value):
        return value
    size = 10.0 ** math.floor(math.log10(abs(value)))
    return float(f"{math.trunc(value / size * (1 + 1e-9)) * size:.0e}")


def rough_all(redactor: Redacts, values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(rough(redactor, value) for value in values)
