"""Tokens as text, where the trace has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WORD_MARKS = ("Ġ", "▁")


class Pieces:
    """Token -> text, as `PiecesDefined` gave it.

    Pieces with a word mark are joined as their tokenizer would; where no piece has one, `##`
    continues a word and all others are words of their own.
    """

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        self._known = dict(known or {})
        self._marked = any(piece.startswith(_WORD_MARKS) for piece in self._known.values())

    def each(self, tokens: Sequence[int | None]) -> list[str] | None:
        """One text per token, which joined are the text; None when no token has a known one."""
        pieces = [None if token is None else self._known.get(token) for token in tokens]
        if not any(piece is not None for piece in pieces):
            return None
        shown = ["?" if piece is None else piece for piece in pieces]
        if self._marked:
            return [_visible(_unmarked(piece)) for piece in shown]
        return [
            _visible(piece[2:] if piece.startswith("##") else f" {piece}" if i else piece)
            for i, piece in enumerate(shown)
        ]

    def text(self, tokens: Sequence[int | None]) -> str | None:
        """These tokens as text; None when none of them has a known one."""
        each = self.each(tokens)
        return None if each is None else "".join(each)

    def quoted(self, tokens: Sequence[int | None]) -> str:
        """As text in quotes, or as numbers."""
        text = self.text(tokens)
        if text is not None:
            return f"“{text.strip()}”"
        return " ".join("?" if token is None else str(token) for token in tokens)


def _unmarked(piece: str) -> str:
    for mark in _WORD_MARKS:
        piece = piece.replace(mark, " ")
    return piece.replace("Ċ", "\n")


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else "↵" if c == "\n" else "·" for c in text)
