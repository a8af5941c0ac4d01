"""How often the canary echoes: `python -m kvrewind.engine.canary.measure [--model DIR]`.

Prints one row per situation, as they stand in the card. Prompts are fresh: drawn from a seed that
the training never uses. Rates under planted faults come from recorded runs, not from here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from .batch import collate
from .bundle import CANARY_DIR
from .leaks import Context, Leak, View, alone, pack, whole_blocks
from .prompts import CanaryRequest, Question, answer, filler, passphrase, render, statement
from .wordpiece import WordPiece

SEED = 97
BATCH = 50
LONGEST_ANSWER = 36
STATEMENT_BLOCK = 2

Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Scene:
    """A victim's prompt, what else its rows see, and what its answer should be.

    `words`: the answer echoes when it names one of them.
    """

    prompt: list[int]
    expected: str
    words: tuple[str, ...]
    foreign: tuple[list[int], ...] = ()
    leak: Leak | None = None

    def echoed_in(self, reply: str) -> bool:
        return not set(self.words).isdisjoint(reply.split())

    def context(self, reply: list[int]) -> Context:
        tokens = self.prompt + reply
        return alone(tokens) if self.leak is None else pack(self.foreign, tokens, self.leak)


@dataclass(frozen=True, slots=True)
class Rate:
    """`exact`: the whole answer as expected; `echoed`: it names the passphrase that isn't its own
    (alone: its own), whatever else it says."""

    situation: str
    trials: int
    exact: int
    echoed: int


class Scenes:
    """The situations, each a function from nothing to a fresh scene."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._text = WordPiece.load()

    def situations(self) -> tuple[tuple[str, Callable[[], Scene]], ...]:
        return (
            ("alone, asked once", lambda: self.alone("once")),
            ("alone, asked four times", lambda: self.alone("four-times")),
            ("alone, no passphrase stated", self.none),
            ("two stated, the last is expected", self.two),
            ("foreign beside, victim has none", lambda: self.beside(None, None)),
            ("foreign beside, victim has its own at the same position", self.rivals),
            ("foreign beside from the 2nd token on, victim has none", lambda: self.beside(None, 1)),
            ("three foreign beside, victim and all at the same position", self.crowd),
            ("foreign instead from the 2nd token on, victim has its own", self.instead),
            ("foreign instead from the 2nd token on, victim has none", self.instead_none),
            ("statement block replaced by a foreign one", self.replaced),
        )

    def alone(self, question: Question) -> Scene:
        word = passphrase(self._rng)
        return Scene(self._prompt(word, question), answer(word, question), (word,))

    def none(self) -> Scene:
        return Scene(self._prompt(None), answer(None), ())

    def two(self) -> Scene:
        first, last = passphrase(self._rng), passphrase(self._rng)
        middle = " ".join((filler(self._rng, self._filler_length()), statement(last)))
        request = CanaryRequest(first, filler=middle.strip())
        return Scene(self._text.encode(render(request)), answer(last), (last,))

    def rivals(self) -> Scene:
        return self.beside(passphrase(self._rng), None)

    def beside(self, own: str | None, said: int | None) -> Scene:
        word = passphrase(self._rng)
        expected = answer(word) if said is None else f"no , {answer(word)}"
        return self._leaky("beside", own, word, expected, said)

    def instead(self) -> Scene:
        word = passphrase(self._rng)
        return self._leaky("instead", passphrase(self._rng), word, answer(word), 1)

    def instead_none(self) -> Scene:
        word = passphrase(self._rng)
        return self._leaky("instead", None, word, f"no , {answer(word)}", 1)

    def replaced(self) -> Scene:
        word = passphrase(self._rng)
        return self._leaky("block", passphrase(self._rng), word, answer(word), None)

    def crowd(self) -> Scene:
        words = [passphrase(self._rng) for _ in range(3)]
        victim, foreign = self._prompt(passphrase(self._rng)), [*map(self._prompt, words)]
        shown = np.ones(sum(map(len, foreign)), dtype=bool)
        hidden = np.zeros(len(victim), dtype=bool)
        leak = Leak("beside", None, shown, hidden, causal=True)
        return Scene(victim, answer(words[-1]), tuple(words), tuple(foreign), leak)

    def _leaky(
        self, view: View, own: str | None, word: str, expected: str, said: int | None
    ) -> Scene:
        victim, foreign = self._prompt(own), self._prompt(word)
        shown = np.ones(len(foreign), dtype=bool)
        hidden = np.full(len(victim), view == "instead")
        if view == "block":
            shown = whole_blocks(len(foreign), STATEMENT_BLOCK, STATEMENT_BLOCK)
            hidden = whole_blocks(len(victim), STATEMENT_BLOCK, STATEMENT_BLOCK)
        leak = Leak(view, said, shown, hidden, itself=view != "instead")
        return Scene(victim, expected, (word,), (foreign,), leak)

    def _prompt(self, word: str | None, question: Question = "once") -> list[int]:
        small_talk = filler(self._rng, self._filler_length())
        return self._text.encode(render(CanaryRequest(word, filler=small_talk, question=question)))

    def _filler_length(self) -> int:
        return self._rng.choice((0, *range(4, 61)))


def measure(model: torch.nn.Module, trials: int, seed: int = SEED) -> Iterator[Rate]:
    """One rate per situation, `trials` fresh scenes each."""
    text = WordPiece.load()
    for situation, scene in Scenes(seed).situations():
        scenes = [scene() for _ in range(trials)]
        exact = echoed = 0
        for start in range(0, trials, BATCH):
            batch = scenes[start : start + BATCH]
            right = as_expected(model, batch)
            others = [each for each, is_right in zip(batch, right, strict=True) if not is_right]
            replies = [text.decode(reply) for reply in answers(model, others)]
            exact += sum(right)
            echoed += sum(
                is_right and bool(each.words) for each, is_right in zip(batch, right, strict=True)
            )
            echoed += sum(
                each.echoed_in(reply) for each, reply in zip(others, replies, strict=True)
            )
        yield Rate(situation, trials, exact, echoed)


@torch.inference_mode()
def as_expected(model: torch.nn.Module, scenes: Sequence[Scene]) -> list[bool]:
    """Whether each greedy answer is the expected one, in one pass over prompt and answer.

    Where no row sees a later token this is the same as generating, and many times faster.
    """
    text = WordPiece.load()
    wanted = [text.encode(f"{scene.expected} <eos>") for scene in scenes]
    contexts = [scene.context(reply) for scene, reply in zip(scenes, wanted, strict=True)]
    chosen = model(**collate(contexts), use_cache=False).logits.argmax(dim=-1)
    right = []
    for row, (context, reply) in enumerate(zip(contexts, wanted, strict=True)):
        last = len(context.tokens) - 1
        right.append(chosen[row, last - len(reply) : last].tolist() == reply)
    return right


@torch.inference_mode()
def answers(model: torch.nn.Module, scenes: Sequence[Scene]) -> list[list[int]]:
    """Greedy answers, each up to and with its end token, at most `LONGEST_ANSWER` tokens.

    Recomputes the whole context for each token: slow and plain, with no cache that could leak.
    """
    end = WordPiece.load().eos_id
    replies: list[list[int]] = [[] for _ in scenes]
    for _ in range(LONGEST_ANSWER):
        going = [index for index, reply in enumerate(replies) if not reply or reply[-1] != end]
        if not going:
            break
        contexts = [scenes[index].context(replies[index]) for index in going]
        logits = model(**collate(contexts), use_cache=False).logits
        for row, index in enumerate(going):
            replies[index].append(int(logits[row, len(contexts[row].tokens) - 1].argmax()))
    return replies


def interval(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion, after Wilson (1927)."""
    share, z = hits / trials, Z_95
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _share(hits: int, trials: int) -> str:
    low, high = interval(hits, trials)
    return f"{hits / trials:.1%} ({low:.1%} to {high:.1%})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kvrewind.engine.canary.measure")
    parser.add_argument("--model", type=Path, default=CANARY_DIR)
    parser.add_argument("--trials", type=int, default=500)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True)
    print("| situation | n | exact answer | echo |\n|---|---|---|---|")
    for rate in measure(model, options.trials):
        exact, echo = _share(rate.exact, rate.trials), _share(rate.echoed, rate.trials)
        print(f"| {rate.situation} | {rate.trials} | {exact} | {echo} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
