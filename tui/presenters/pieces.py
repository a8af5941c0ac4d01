"""Tokens as text that can be put on a screen."""

from __future__ import annotations

from collections.abc import Sequence

from ...replay import pieces


class Pieces(pieces.Pieces):
    """As the reports have them, without signs that would move the cursor or break a line."""

    def each(self, tokens: Sequence[int | None]) -> list[str] | None:
        each = super().each(tokens)
        return None if each is None else [_visible(text) for text in each]

    def text(self, tokens: Sequence[int | None]) -> str | None:
        """These tokens as running text; None when none of them has a known one."""
        each = self.each(tokens)
        return None if each is None else "".join(each).strip()

    def said(self, tokens: Sequence[int | None]) -> str:
        """As text in quotes, or as numbers."""
        text = self.text(tokens)
        if text is not None:
            return f"“{text}”"
        return " ".join("?" if token is None else str(token) for token in tokens)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else "↵" if c == "\n" else "·" for c in text)
