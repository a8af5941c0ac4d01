"""The canary's tokenizer without torch or transformers: greedy longest piece first.

The same vocabulary and rules lie beside it as `tokenizer.json`; a test proves both the same.
Source of the algorithm: WordPiece as in BERT (Devlin et al., 2019), with single characters as
continuations, so that every alphanumeric word has an encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .bundle import CANARY_DIR
from .vocabulary import CONTINUATION, EOS, PAD, SPECIALS, UNK

VOCABULARY_FILE = "vocab.txt"

# Spelled out, since "white space" and "word" differ between Python's and the Rust tokenizer's
# idea of Unicode.
WHITE_SPACE = r" \t\n\r\f\v"
_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
_WORD = re.compile(rf"[a-z0-9]+|[^a-z0-9{WHITE_SPACE}]")


class WordPiece:
    """Text to token ids and back. Text is lower-cased; nothing is added to it.

    Round trip: for lower-case letters and digits separated by single spaces,
    `decode(encode(text)) == text`.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = tuple(pieces)
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._longest = max(map(len, self._pieces))
        self.pad_id = self._ids[PAD]
        self.unk_id = self._ids[UNK]
        self.eos_id = self._ids[EOS]

    @classmethod
    def load(cls, folder: Path = CANARY_DIR) -> WordPiece:
        """The tokenizer whose `vocab.txt` (one piece a line) lies in `folder`.

        Raises OSError when the file can't be read, KeyError when a special piece is missing.
        """
        text = (folder / VOCABULARY_FILE).read_text(encoding="utf-8")
        return cls(text.splitlines())

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. A special piece spelled out (`<eos>`) becomes its id."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            if part in SPECIALS:
                ids.append(self._ids[part])
                continue
            for word in _WORD.findall(part.lower()):
                ids.extend(self._split(word))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, special pieces included, words separated by one space.

        Raises IndexError for an id outside the vocabulary.
        """
        words: list[str] = []
        for token in ids:
            piece = self.piece(token)
            if words and piece.startswith(CONTINUATION):
                words[-1] += piece.removeprefix(CONTINUATION)
            else:
                words.append(piece)
        return " ".join(words)

    def piece(self, token: int) -> str:
        """The piece as the vocabulary spells it, `##k` for a continuation.

        Raises IndexError for an id outside the vocabulary.
        """
        if not 0 <= token < len(self._pieces):
            raise IndexError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return self._pieces[token]

    def _split(self, word: str) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            token, start = self._longest_piece(word, start)
            if token is None:
                return [self.unk_id]
            ids.append(token)
        return ids

    def _longest_piece(self, word: str, start: int) -> tuple[int | None, int]:
        prefix = CONTINUATION if start else ""
        for end in range(min(len(word), start + self._longest), start, -1):
            token = self._ids.get(prefix + word[start:end])
            if token is not None:
                return token, end
        return None, len(word)
