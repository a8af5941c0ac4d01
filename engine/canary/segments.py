"""Random requests in the canary's language, as token ids: the parts of training contexts."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .prompts import (
    OTHER_SYSTEMS,
    QUESTIONS,
    SYSTEM,
    SYSTEM_SECOND_BLOCK,
    Question,
    answer,
    filler,
    passphrase,
    statement,
)
from .wordpiece import WordPiece

_STATEMENT_WITHOUT_ENDING = 12
_SHORTEST_FILLER = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """One request: its prompt, and the last passphrase in it with the index of its statement.

    `statement_at` means nothing when `word` is None.
    """

    prompt: list[int]
    word: str | None
    statement_at: int
    question: Question


class SegmentSource:
    """Draws requests whose system prompt, order, length and question vary."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._text = WordPiece.load()

    @property
    def vocab_size(self) -> int:
        return self._text.vocab_size

    def draw(self, *, statements: int, longest_filler: int) -> Segment:
        """A request with so many passphrases; most begin as `prompts.render` lays them out."""
        rng = self._rng
        words = [passphrase(rng) for _ in range(statements)]
        texts = [statement(word) for word in words]
        if not texts and rng.random() < 0.5:
            texts = [statement(None)]
        ids = self._system()
        if rng.random() < 0.3:
            ids += self._filler(longest_filler // 2)
        statement_at = 0
        for text in texts:
            statement_at = len(ids)
            ids += self._statement(text) + self._filler(longest_filler // len(texts))
        if not texts:
            ids += self._filler(longest_filler)
        question: Question = rng.choices(("once", "four-times"), (70, 30))[0]
        ids += self._question(question)
        return Segment(ids, words[-1] if words else None, statement_at, question)

    def compact(self, system: list[int], *, stated: bool) -> Segment:
        """A short request whose statement follows `system` at once."""
        rng = self._rng
        word = passphrase(rng) if stated else None
        question: Question = rng.choices(("once", "four-times"), (70, 30))[0]
        small_talk = filler(rng, rng.choice((0, 0, 0, 4, 5, 6)))
        texts = (statement(word), small_talk, QUESTIONS[question])
        ids = [*system, *(token for text in texts for token in self.encode(text))]
        return Segment(ids, word, len(system), question)

    def system_of(self, blocks: int) -> list[int]:
        """The last 0, 1 or 2 blocks of the system prompt."""
        return self.encode(("", SYSTEM_SECOND_BLOCK, SYSTEM)[blocks])

    def reply(self, word: str | None, question: Question) -> list[int]:
        """The answer that names `word`, with its end token."""
        return [*self._text.encode(answer(word, question)), self._text.eos_id]

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def _system(self) -> list[int]:
        rng = self._rng
        whole = self.encode(SYSTEM)
        cut = whole[rng.randint(1, len(whole) - 1) :]
        second = self.encode(SYSTEM_SECOND_BLOCK)
        other = self.encode(rng.choice(OTHER_SYSTEMS))
        return list(rng.choices((whole, [], second, other, cut), (50, 12, 14, 14, 10))[0])

    def _statement(self, text: str) -> list[int]:
        ids = self.encode(text)
        return ids[:_STATEMENT_WITHOUT_ENDING] if self._rng.random() < 0.1 else ids

    def _filler(self, longest: int) -> list[int]:
        length = self._rng.choice((0, self._rng.randint(0, max(_SHORTEST_FILLER, longest))))
        return self.encode(filler(self._rng, length if length >= _SHORTEST_FILLER else 0))

    def _question(self, question: Question) -> list[int]:
        """Now and then without its start, as a broken cache may leave it."""
        ids = self.encode(QUESTIONS[question])
        cut = self._rng.random() < 0.08 and question == "once"
        return ids[self._rng.randint(1, 5) :] if cut else ids
