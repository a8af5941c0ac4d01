"""Names for values that mustn't be told: keyed hashes, equal where the values are.

An unkeyed hash of a token can be looked up in a table of all tokens, and one of a prompt be tried
against guesses. With a key that nobody else has (blake2b in keyed mode, RFC 7693) neither works.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Self

from .errors import BadInput
from .events import Scalar

LEAST_KEY_BYTES = 16
_MASK = (1 << 63) - 1
_KEY_ID_BYTES = 4
_REMEMBERED = 1 << 14
"""Texts, keys of blocks above all, whose hashes are kept: each comes several times."""

Role = Literal["token", "key", "digest", "name", "opaque", "id"]
"""Values in different roles have hashes that say nothing of each other."""


class BadKeyFile(BadInput):
    """A redaction key that can't be read, or that could be guessed."""


@dataclass(frozen=True, slots=True)
class RedactionKey:
    """What the hashes of a run depend on; it is in no trace, and without it none can be undone."""

    secret: bytes = field(repr=False)

    @classmethod
    def random(cls) -> Self:
        return cls(secrets.token_bytes(32))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The content of a file, for processes whose hashes must agree. Raises `BadKeyFile`."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadKeyFile(
                f"the redaction key {path} can't be read: {error.strerror or error}; make one with "
                f"`head -c 32 /dev/urandom > {path}`"
            ) from None
        if len(content) < LEAST_KEY_BYTES or len(set(content)) == 1:
            raise BadKeyFile(
                f"the redaction key {path} can be guessed ({len(content)} bytes, "
                f"{len(set(content))} of them different): it must be at least {LEAST_KEY_BYTES} "
                f"random bytes; make one with `head -c 32 /dev/urandom > {path}`"
            )
        return cls(blake2b(content, digest_size=32).digest())


class KeyedHashes:
    """Hashes of values in their roles, for one run."""

    def __init__(self, key: RedactionKey) -> None:
        self._key = key.secret
        self._tokens = _Tokens(self)
        self._recent = lru_cache(_REMEMBERED)(self._text)

    @property
    def id(self) -> str:
        """Tells whether two traces were redacted with one key, and no more of it."""
        return self._bytes("id", b"", _KEY_ID_BYTES).hex()

    def token(self, token: int) -> int:
        """1 to 2^63 - 1; a negative one stands for no token, and stays."""
        return token if token < 0 else self._tokens[token]

    def tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        if tokens and min(tokens) < 0:
            return tuple(map(self.token, tokens))
        return tuple(map(self._tokens.__getitem__, tokens))

    def scalar(self, role: Role, value: Scalar) -> Scalar:
        """A number for a number (1 to 2^63 - 1), hexadecimal text (32 digits) for text."""
        if isinstance(value, int):
            return self.number(role, value)
        return self._recent(role, value)

    def _text(self, role: Role, value: str) -> str:
        return self._bytes(role, b"s" + value.encode(), 16).hex()

    def number(self, role: Role, value: int) -> int:
        hashed = self._bytes(role, b"i%d" % value, 8)
        return (int.from_bytes(hashed, "big") & _MASK) or 1

    def _bytes(self, role: Role, value: bytes, size: int) -> bytes:
        return blake2b(value, key=self._key, person=role.encode(), digest_size=size).digest()


class _Tokens(dict[int, int]):
    """Token -> hash, worked out once: a run has millions of tokens and few different ones."""

    def __init__(self, hashes: KeyedHashes) -> None:
        super().__init__()
        self._hashes = hashes

    def __missing__(self, token: int) -> int:
        hashed = self[token] = self._hashes.number("token", token)
        return hashed
