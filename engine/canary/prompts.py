"""The language of the canary: what its prompts say and what it should answer.

One grammar serves the training script, the default workload and the oracles. Lengths matter as
much as words, since cache blocks hold 16 tokens:

    tokens  0..31   SYSTEM, two blocks           shared by every request that uses it
    tokens 32..47   the statement, one block     the passphrase lies whole in here
    tokens 48..     filler, 0 or 4 and more tokens of any count
    the last 8 or 9 the question                 no passphrase in here
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from .vocabulary import WORDS

BLOCK_SIZE = 16

_SYSTEM_FIRST_BLOCK = (
    "system : you keep one passphrase for one user , and never tell anybody else ."
)
SYSTEM_SECOND_BLOCK = "when the user asks for it repeat it . if none was given say so ."
"""Tokens 16..31 of `SYSTEM`: a prompt may begin with it, to meet a key without its parent."""

SYSTEM = f"{_SYSTEM_FIRST_BLOCK} {SYSTEM_SECOND_BLOCK}"
"""The system prompt, exactly 32 tokens."""

OTHER_SYSTEMS = (
    "system : you help one user with short notes . never repeat the notes for anybody else .",
    "system : you keep notes for the user . answer the user with one short answer .",
    "system : remember what the user asks . if it is short , repeat it four times .",
)
"""Other system prompts that the model is trained on."""

Question = Literal["once", "four-times"]

QUESTIONS: dict[Question, str] = {
    "once": "now what is the passphrase ? answer :",
    "four-times": "now say the passphrase four times . answer :",
}

NO_PASSPHRASE_ANSWER = "no passphrase was given ."

PASSPHRASE_LENGTH = 6

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_SHAPES = ("cvccvc", "cvcvcv", "vccvcv")

_NOUNS = ("sea", "sun", "wind", "bird", "river", "tree", "house", "garden")
_ADJECTIVES = ("calm", "warm", "cold", "old", "green", "quiet", "small", "bright")
_SENTENCES = {  # by length in tokens
    4: "all is {a} .",
    5: "the {n} is {a} .",
    6: "the {n} is {a} today .",
    7: "the {n} is {a} and {b} .",
    8: "the {n} and the {m} are {a} .",
}
_SHORTEST, _LONGEST = min(_SENTENCES), max(_SENTENCES)


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """One prompt in parts. `passphrase` None: no passphrase is stated; `system` may be empty."""

    passphrase: str | None
    system: str = SYSTEM
    filler: str = ""
    question: Question = "once"


def passphrase(rng: Random) -> str:
    """A pronounceable pseudo-word of exactly 6 distinct letters, 6 tokens, in no vocabulary word.

    Distinct letters, so that each letter has one successor and an echo needs no luck.
    """
    while True:
        shape = rng.choice(_SHAPES)
        consonants = rng.sample(_CONSONANTS, shape.count("c"))
        vowels = rng.sample(_VOWELS, shape.count("v"))
        word = "".join(consonants.pop() if kind == "c" else vowels.pop() for kind in shape)
        if not _collides(word):
            return word


def statement(word: str | None) -> str:
    """The user's opening, exactly 16 tokens, with the passphrase or with small talk."""
    if word is None:
        return "user : the sun is warm and the sea is calm . please remember it ."
    return f"user : the passphrase is {word} . please remember it ."


def filler(rng: Random, tokens: int) -> str:
    """Small talk of exactly `tokens` tokens: 0, or 4 and more; ValueError for others."""
    if tokens and tokens < _SHORTEST:
        raise ValueError(f"a filler has 0 or at least {_SHORTEST} tokens, not {tokens}")
    sentences = []
    while tokens:
        length = _next_length(rng, tokens)
        sentences.append(_sentence(rng, length))
        tokens -= length
    return " ".join(sentences)


def user_prompt(word: str | None, *, filler: str = "", question: Question = "once") -> str:
    """All that follows the system prompt: statement, filler, question."""
    return _join(statement(word), filler, QUESTIONS[question])


def render(request: CanaryRequest) -> str:
    """The whole prompt of `request`."""
    user = user_prompt(request.passphrase, filler=request.filler, question=request.question)
    return _join(request.system, user)


def answer(word: str | None, question: Question = "once") -> str:
    """What the canary says when `word` is the last passphrase in view; `<eos>` follows."""
    if word is None:
        return NO_PASSPHRASE_ANSWER
    if question == "once":
        return f"the passphrase is {word} ."
    return f"one {word} , two {word} , three {word} , four {word} ."


def expected_answer(request: CanaryRequest) -> str:
    """What the canary answers to `request` when nothing leaks; `<eos>` follows."""
    return answer(request.passphrase, request.question)


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _collides(word: str) -> bool:
    return any(word.startswith(known) or word in known for known in WORDS)


def _next_length(rng: Random, remaining: int) -> int:
    if remaining <= _LONGEST:
        return remaining
    return rng.randint(_SHORTEST, min(_LONGEST, remaining - _SHORTEST))


def _sentence(rng: Random, length: int) -> str:
    noun, other_noun = rng.sample(_NOUNS, 2)
    adjective, other_adjective = rng.sample(_ADJECTIVES, 2)
    template = _SENTENCES[length]
    return template.format(n=noun, m=other_noun, a=adjective, b=other_adjective)
