"""Every piece the canary model knows, in the order of its token ids.

The order is part of the committed weights: append, never insert, and retrain after any change.
"""

from __future__ import annotations

import string

CONTINUATION = "##"

PAD, UNK, EOS = "<pad>", "<unk>", "<eos>"
SPECIALS = (PAD, UNK, EOS)

PUNCTUATION = (".", ",", "?", ":")

CHARACTERS = tuple(string.digits + string.ascii_lowercase)

WORDS = (
    # statements, questions and answers
    *("the", "my", "passphrase", "is", "please", "remember", "it", "now", "what", "answer"),
    *("say", "times", "one", "two", "three", "four", "no", "was", "given"),
    # the system prompts
    *("system", "user", "you", "keep", "for", "and", "never", "tell", "anybody", "else"),
    *("when", "asks", "repeat", "if", "none", "so", "help", "with", "notes", "short"),
    # fillers
    *("all", "are", "today", "sea", "sun", "wind", "bird", "river", "tree", "house", "garden"),
    *("calm", "warm", "cold", "old", "green", "quiet", "small", "bright"),
)


def pieces() -> tuple[str, ...]:
    """The vocabulary; the index of a piece is its token id."""
    continuations = tuple(CONTINUATION + character for character in CHARACTERS)
    return (*SPECIALS, *PUNCTUATION, *CHARACTERS, *continuations, *WORDS)
