"""What a request says in the simulator: a function of its prompt and the token's index alone.

A request that speaks of the passphrase answers as the canary would. Any other goes on with phrases
of its own, pseudo-random and repeated, so that drafts looked up in its text are right in part.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from math import exp
from typing import Protocol

from .canary.prompts import Question, answer
from .canary.wordpiece import WordPiece
from .request import Prompt
from .sampling import Sample, Sampling, uniform
from .workloads.tokens import ALPHABET, FIRST_TOKEN, synthetic_tokens

_STATED = re.compile(r"the passphrase is (\w+) \.")
_PHRASES = 6
_PHRASE_LENGTH = 8
_CANDIDATES = 4
"""Tokens that a draw chooses from; each is e times as likely as the next at temperature 1."""
_STRIDE = 17
"""Odd, so that candidates differ: from each to the next in the alphabet."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How one request speaks. `question` None: it goes on with `phrases`; else it answers, about
    `word` where nothing leaks."""

    prompt_length: int
    question: Question | None
    word: str | None
    phrases: tuple[int, ...]
    """As many tokens as the request may ever say."""


class Voices(Protocol):
    """What a run's requests say."""

    def begin(self, prompt: Prompt) -> None: ...

    def next(self, request: str, index: int, source: str) -> int:
        """The token that takes `index` when `request` sees the context of `source`: its own, or
        whose was leaked to it."""
        ...

    def draw(self, best: int, sample: Sample) -> int:
        """The sample's token where `best` is the likeliest: that, or by chance another one."""
        ...


class Speech:
    """Implements `Voices` in the canary's language."""

    def __init__(self, tokenizer: WordPiece, seed: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._mention = tuple(tokenizer.encode("the passphrase"))
        self._voices: dict[str, Voice] = {}
        self._scripts: dict[tuple[str | None, Question], tuple[int, ...]] = {}

    def begin(self, prompt: Prompt) -> None:
        self._voices[prompt.request] = self._voice(prompt)

    def next(self, request: str, index: int, source: str) -> int:
        own = self._voices[request]
        said = max(index - own.prompt_length, 0)
        seen = self._voices[source]
        question = own.question or seen.question
        if question is None:
            return seen.phrases[said % len(seen.phrases)]
        script = self._script(seen.word, question)
        return script[said] if said < len(script) else self._tokenizer.eos_id

    def draw(self, best: int, sample: Sample) -> int:
        if sample.sampling.temperature <= 0:
            return best
        others = (
            FIRST_TOKEN + (best + rank * _STRIDE) % ALPHABET for rank in range(1, _CANDIDATES)
        )
        candidates = (best, *(token for token in others if token != best))
        borders = list(accumulate(_chances(len(candidates), sample.sampling)))
        share = uniform(self._seed, sample.request, sample.index) * borders[-1]
        return next(token for token, end in zip(candidates, borders, strict=False) if share < end)

    def _voice(self, prompt: Prompt) -> Voice:
        tokens = prompt.prompt_tokens
        if prompt.passphrase is None and not _contains(tokens, self._mention):
            return Voice(len(tokens), None, None, _phrases(tokens, prompt.max_new_tokens))
        text = self._tokenizer.decode(tokens)
        stated = _STATED.findall(text)
        question = "four-times" if "four times" in text else "once"
        return Voice(len(tokens), question, stated[-1] if stated else prompt.passphrase, ())

    def _script(self, word: str | None, question: Question) -> tuple[int, ...]:
        key = word, question
        if key not in self._scripts:
            self._scripts[key] = tuple(self._tokenizer.encode(answer(word, question)))
        return self._scripts[key]


def _contains(tokens: Sequence[int], run: tuple[int, ...]) -> bool:
    """Whether `run` stands somewhere in `tokens`."""
    if run[-1] not in tokens:  # at the speed of C, and true of hardly any long prompt
        return False
    ends = (i for i, token in enumerate(tokens, 1) if token == run[-1])
    return any(tuple(tokens[max(0, end - len(run)) : end]) == run for end in ends)


def _phrases(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` tokens after this prompt: one of its few phrases after the other, in any order."""
    label = blake2b(array("q", prompt).tobytes(), digest_size=16).hexdigest()
    book = synthetic_tokens(f"phrases {label}", _PHRASES * _PHRASE_LENGTH)
    order = synthetic_tokens(f"order {label}", count // _PHRASE_LENGTH + 1)
    starts = (number % _PHRASES * _PHRASE_LENGTH for number in order)
    said = (token for start in starts for token in book[start : start + _PHRASE_LENGTH])
    return tuple(said)[:count]


def _chances(count: int, sampling: Sampling) -> list[float]:
    """Of candidates by rank, unnormalised: what is left after top-k, then top-p of the rest."""
    temperature, top_k, top_p = sampling
    kept = min(count, top_k) if top_k > 0 else count
    chances = [exp(-rank / temperature) for rank in range(kept)]
    enough = top_p * sum(chances)
    while len(chances) > 1 and sum(chances[:-1]) >= enough:
        chances.pop()
    return chances
