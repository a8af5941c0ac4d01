"""The text of tokens, told once each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..recorder.events import PiecesDefined
from .journal import Journal


class Pieces:
    """`spell` gives a token's text; without it nothing is told."""

    def __init__(self, journal: Journal, spell: Callable[[int], str] | None) -> None:
        self._journal = journal
        self._spell = spell
        self._defined: set[int] = set()

    def define(self, tokens: Iterable[int]) -> None:
        """Each token's text, the first time that the token occurs."""
        if self._spell is None:
            return
        new = [t for t in dict.fromkeys(tokens) if t not in self._defined]
        if new:
            self._defined.update(new)
            pieces = tuple(self._spell(token) for token in new)
            if self._journal.listening:
                self._journal.emit(PiecesDefined(tokens=tuple(new), pieces=pieces))
