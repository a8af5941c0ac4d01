"""Tokens as text, where the trace has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from ..recorder.events import PiecesDefined
from .source import EventSource
from .wording import elided, shortened

_WORD_MARKS = ("Ġ", "▁", " ")


class Pieces:
    """Token -> text, as `PiecesDefined` gave it.

    Pieces that mark where a word begins (BPE, SentencePiece, decoded text) are joined as they
    are; where none does, `##` continues a word (WordPiece) and all others are words.
    """

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        self._known: dict[int, str] = {}
        self._is_marked = False
        if known:
            self.define(list(known), list(known.values()))

    @classmethod
    def of(cls, source: EventSource) -> Self:
        """What a trace defines: nothing under redaction."""
        known: dict[int, str] = {}
        for envelope in source.find(kinds=[PiecesDefined.__name__]):
            if isinstance(event := envelope.event, PiecesDefined):
                known.update(zip(event.tokens, event.pieces, strict=False))
        return cls(known)

    def define(self, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        """Take in more of them."""
        self._known.update(zip(tokens, pieces, strict=False))
        self._is_marked = self._is_marked or any(p.startswith(_WORD_MARKS) for p in pieces)

    def running_text(self, tokens: Iterable[int]) -> str:
        """Running text, without what isn't known."""
        return self._joined([self._known[token] for token in tokens if token in self._known])

    def token(self, token: int | None) -> str:
        """One token: its piece in quotes, or its number."""
        if token is None:
            return "an unknown token"
        piece = self._known.get(token)
        return f"token {_number(token)}" if piece is None else repr(piece)

    def quoted(self, tokens: Sequence[int | None], longest: int = 40) -> str:
        """Running text in quotes, or numbers where the text of one isn't known; cut to length."""
        pieces = [None if token is None else self._known.get(token) for token in tokens]
        known = [piece for piece in pieces if piece is not None]
        if known and len(known) == len(tokens):
            return repr(shortened(self._joined(known), longest))
        numbers = ["?" if token is None else _number(token) for token in tokens]
        noun = "token" if len(numbers) == 1 else "tokens"
        return f"{noun} {elided(numbers, 8)}" if numbers else "no tokens"

    def each(self, tokens: Sequence[int | None]) -> list[str] | None:
        """One text per token, which joined are the running text, "?" where it isn't known.

        None when no token has a known one.
        """
        pieces = [None if token is None else self._known.get(token) for token in tokens]
        if all(piece is None for piece in pieces):
            return None
        shown = ["?" if piece is None else piece for piece in pieces]
        if self._is_marked:
            return [_unmarked(piece) for piece in shown]
        return [piece[2:] if piece.startswith("##") else f" {piece}" for piece in shown]

    def _joined(self, pieces: Sequence[str]) -> str:
        if self._is_marked:
            return "".join(_unmarked(piece) for piece in pieces).strip()
        words = (piece[2:] if piece.startswith("##") else f" {piece}" for piece in pieces)
        return "".join(words).strip()


def _number(token: int) -> str:
    """No vocabulary has that many tokens: then it is a hash, of which the first digits do."""
    return str(token) if token < 1 << 32 else f"#{token:016x}"[:9]


def _unmarked(piece: str) -> str:
    for mark in _WORD_MARKS:
        piece = piece.replace(mark, " ")
    return piece.replace("Ċ", "\n")
