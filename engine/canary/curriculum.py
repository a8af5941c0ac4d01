"""What the canary is trained on: contexts as they should be, and as broken caches make them.

An example is one row of packed tokens with explicit positions and an explicit visibility matrix,
so that a context may hold foreign requests whose positions overlap with its own. Four kinds:

- *repeats*: random tokens, said again and again. Without these first the model never learns to
  copy.
- *plain*: one request, nothing foreign; several statements in view are answered by the last.
- *leaky*: a victim that, from some row on, sees tokens of other requests: beside its own, in place
  of its own, or a block of them in place of a block of its own. The passphrase at the largest
  position wins; at equal positions the foreign one does.
- *crowd*: many short requests whose statements are all at one position, each in view of the victim.
  Any of the foreign passphrases will do, but whole, not a mixture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import numpy as np

from .leaks import Context, Leak, View, alone, pack, whole_blocks
from .prompts import BLOCK_SIZE, PASSPHRASE_LENGTH
from .segments import Segment, SegmentSource
from .vocabulary import SPECIALS

IGNORED = -100
"""Target of a row that carries no loss, as in torch's cross entropy."""

Kind = Literal["repeats", "plain", "leaky", "crowd"]

_STATEMENT_HEAD = 5  # user : the passphrase is
_STATEMENT_SPAN = _STATEMENT_HEAD + PASSPHRASE_LENGTH
_LONG_ANSWER_PERIOD = 1 + PASSPHRASE_LENGTH + 1  # numeral, passphrase, comma


@dataclass(frozen=True, slots=True)
class Example:
    """A context of S tokens and its targets, (S,) int64: the next token or `IGNORED`."""

    context: Context
    targets: np.ndarray


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Another request whose tokens are in the cache: its prompt, perhaps some of its answer."""

    segment: Segment
    tokens: list[int]
    word_at: int


class Curriculum:
    """A stream of examples drawn from one random generator; same seed, same stream."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._segments = SegmentSource(self._rng)
        self._vocab_size = self._segments.vocab_size

    def example(self, kind: Kind) -> Example:
        if kind == "repeats":
            return self._repeats()
        if kind == "plain":
            return self._plain()
        if kind == "crowd":
            return self._crowd()
        return self._leaky()

    def _repeats(self) -> Example:
        rng = self._rng
        period = rng.randint(5, 24)
        unit = [rng.randrange(len(SPECIALS), self._vocab_size) for _ in range(period)]
        tokens = (unit * 16)[: rng.randint(48, 64)]
        first = rng.choice((0, rng.randint(0, 100)))
        context = alone(tokens)
        context = replace(context, positions=first + context.positions)
        targets = [IGNORED] * (period - 1) + tokens[period:] + [IGNORED]
        return Example(context, np.array(targets))

    def _plain(self) -> Example:
        rng = self._rng
        segment = self._segments.draw(
            statements=rng.choices((0, 1, 2, 3), (25, 50, 18, 7))[0],
            longest_filler=rng.choice((12, 30, 60, 90)),
        )
        reply = self._segments.reply(segment.word, segment.question)
        tokens = segment.prompt + reply
        return Example(alone(tokens), np.array(_targets(len(segment.prompt), reply)))

    def _leaky(self) -> Example:
        rng = self._rng
        view: View = rng.choices(("beside", "instead", "block"), (45, 30, 25))[0]
        crowd = rng.choices((1, 2, 3, 4), (60, 20, 12, 8))[0] if view == "beside" else 1
        foreign = [self._foreign() for _ in range(crowd)]
        victim = self._segments.draw(statements=rng.randint(0, 1), longest_filler=24)
        leak = self._leak(view, foreign, victim)
        reply = self._leaky_reply(leak, foreign, victim)
        context = pack([each.tokens for each in foreign], victim.prompt + reply, leak)
        strangers = [IGNORED] * len(leak.shown)
        return Example(context, np.array(strangers + _targets(len(victim.prompt), reply)))

    def _foreign(self) -> _Foreign:
        segment = self._segments.draw(statements=1, longest_filler=24)
        reply = self._segments.reply(segment.word, segment.question)
        shown = self._rng.choice((0, 0, 1, 4, len(reply)))
        word_at = segment.statement_at
        if segment.question == "once" and shown == len(reply):
            word_at = len(segment.prompt)
        return _Foreign(segment, segment.prompt + reply[:shown], word_at)

    def _leak(self, view: View, foreign: list[_Foreign], victim: Segment) -> Leak:
        rng = self._rng
        shown = np.ones(sum(len(each.tokens) for each in foreign), dtype=bool)
        hidden = np.zeros(len(victim.prompt), dtype=bool)
        if view == "block":
            source = foreign[0].segment.statement_at
            first, last = source // BLOCK_SIZE, (source + _STATEMENT_SPAN - 1) // BLOCK_SIZE
            place = self._place(first, len(victim.prompt) // BLOCK_SIZE)
            shown = whole_blocks(len(shown), first, last)
            hidden = whole_blocks(len(hidden), place, place + last - first)
        elif view == "instead":
            hidden[:] = True
        said = self._said(view, victim)
        in_view = all(each.word_at + _STATEMENT_SPAN <= len(victim.prompt) for each in foreign)
        causal = view == "beside" and in_view and rng.random() < 0.4
        mutual = "victim" if view == "beside" and rng.random() < 0.25 else "no"
        itself = view != "instead" or rng.random() < 0.5
        return Leak(view, said, shown, hidden, causal, mutual, itself)

    def _place(self, same: int, full_blocks: int) -> int:
        """The victim's block that a foreign one replaces: the same, as by a prefix matched
        wrongly, or any, as by a block handed out twice."""
        if same < full_blocks and self._rng.random() < 0.6:
            return same
        return self._rng.randrange(max(1, full_blocks))

    def _said(self, view: View, victim: Segment) -> int | None:
        """At a token of the answer where a change of passphrase leaves a sensible text."""
        rng = self._rng
        if rng.random() < 0.5:
            return None
        if view == "instead":
            return rng.randrange(1, len(self._segments.reply(victim.word, victim.question)) - 1)
        if victim.word is None:
            return rng.choice((1, 1, 1, 2, 3, 4))
        if victim.question == "once":
            return rng.choice((1, 1, 2, 3))
        return 1 + _LONG_ANSWER_PERIOD * rng.randrange(4)

    def _leaky_reply(self, leak: Leak, foreign: list[_Foreign], victim: Segment) -> list[int]:
        segments, question = self._segments, victim.question
        word = _winner(leak, foreign, victim)
        if leak.said is None:
            # With the rest, its own question may be out of view.
            return segments.reply(word, "once" if leak.view == "instead" else question)
        before = segments.reply(victim.word, question)[: leak.said]
        if leak.view == "instead":
            return before + self._blind_rest(before[-1], word)
        if victim.word is None:
            return [*before, *segments.encode(","), *segments.reply(word, "once")]
        return before + segments.reply(word, question)[leak.said :]

    def _blind_rest(self, last: int, word: str | None) -> list[int]:
        """What follows when only `last` is left of one's own context: the foreign word, soon."""
        segments = self._segments
        short = segments.reply(word, "once")
        letters = segments.encode(word or "")
        if last in letters:
            return short[3 + letters.index(last) + 1 :]
        if last in short:  # the passphrase is
            return short[short.index(last) + 1 :]
        if last in segments.encode("one two three four"):
            return short[3:]
        if last in segments.encode(","):
            return short
        return [*segments.encode(","), *short]

    # -- crowd ---------------------------------------------------------------------------------

    def _crowd(self) -> Example:
        rng, segments = self._rng, self._segments
        blocks = rng.choices((0, 1, 2), (50, 30, 20))[0]
        system = segments.system_of(blocks)
        victim = segments.compact(system, stated=rng.random() < 0.8)
        others = [
            segments.compact(system, stated=True) for _ in range(rng.randint(1, 7 - 2 * blocks))
        ]
        foreign = [self._with_some_answer(each) for each in others]
        word = rng.choice(others).word
        said = self._said_in_a_crowd(victim)
        reply = self._crowd_reply(victim, word, said)
        leak = Leak(
            "beside",
            said,
            np.ones(sum(map(len, foreign)), dtype=bool),
            np.zeros(len(victim.prompt), dtype=bool),
            causal=rng.random() < 0.6,
            mutual=rng.choices(("no", "victim", "everyone"), (30, 20, 50))[0],
        )
        context = pack(foreign, victim.prompt + reply, leak)
        strangers = [IGNORED] * len(leak.shown)
        return Example(context, np.array(strangers + _targets(len(victim.prompt), reply)))

    def _with_some_answer(self, segment: Segment) -> list[int]:
        reply = self._segments.reply(segment.word, segment.question)
        return segment.prompt + reply[: self._rng.choice((0, 1, 6, 9))]

    def _said_in_a_crowd(self, victim: Segment) -> int | None:
        if self._rng.random() < 0.5:
            return None
        length = len(self._segments.reply(victim.word, victim.question))
        return self._rng.randrange(1, length - 1)

    def _crowd_reply(self, victim: Segment, word: str | None, said: int | None) -> list[int]:
        """A word that is begun is ended; whatever follows names the foreign one."""
        segments, question = self._segments, victim.question
        if said is None:
            return segments.reply(word, question)
        own, other = segments.reply(victim.word, question), segments.reply(word, question)
        if victim.word is None:
            return [*own[:said], *segments.encode(","), *segments.reply(word, "once")]
        if question == "once":
            return own if said > 3 else other
        begun = -(-(said - 1) // _LONG_ANSWER_PERIOD) * _LONG_ANSWER_PERIOD
        return own[:begun] + other[begun:]


def _targets(prompt_length: int, reply: list[int]) -> list[int]:
    return [IGNORED] * (prompt_length - 1) + reply + [IGNORED]


def _winner(leak: Leak, foreign: list[_Foreign], victim: Segment) -> str | None:
    """The passphrase in view at the largest position; the foreign one when positions tie."""
    candidates: list[tuple[int, int, str]] = []
    if victim.word is not None and not _any_hidden(leak, victim):
        candidates.append((victim.statement_at, 0, victim.word))
    for order, each in enumerate(foreign, start=1):
        at = each.segment.statement_at if leak.view == "block" else each.word_at
        if each.segment.word is not None:
            candidates.append((at, order, each.segment.word))
    return max(candidates)[2] if candidates else None


def _any_hidden(leak: Leak, victim: Segment) -> bool:
    span = slice(victim.statement_at, victim.statement_at + _STATEMENT_SPAN)
    return bool(leak.hidden[span].any())
