"""Faults of the prefix match: two different contents under one key."""

from __future__ import annotations

from collections.abc import Callable

from ..prefix_cache import Content
from ..questions import Answer, Hit, Question, Share
from .base import Fault


class KeyNoParent(Fault):
    """Key and comparison forget the chain: a block matches by its own tokens alone."""

    def answer(self, question: Question, right: Answer) -> Answer:
        return _first_match(question, right, lambda a, b: a.tokens == b.tokens)


class KeyLengthOnly(Fault):
    """The content isn't compared: any block after as many tokens matches."""

    def answer(self, question: Question, right: Answer) -> Answer:
        return _first_match(question, right, lambda a, b: a.index == b.index)


def _first_match(
    question: Question, right: Answer, equal: Callable[[Content, Content], bool]
) -> Answer:
    """The oldest entry of the same tenant that the broken comparison takes for equal."""
    if not isinstance(question, Share):
        return right
    wanted = question.content
    for entry in question.index.entries():
        if entry.content.tenant == wanted.tenant and equal(entry.content, wanted):
            return Hit(entry.block, entry.key)
    return right


KEY_NO_PARENT = KeyNoParent(
    name="key-no-parent",
    fault_class="F01",
    check="identity",
    outcome="leaks",
    what="the key of a block forgets what comes before it",
    seen_in="vLLM 30931",
    needs="a prompt that begins with another's second block",
)

KEY_LENGTH_ONLY = KeyLengthOnly(
    name="key-length-only",
    fault_class="F01",
    check="identity",
    outcome="leaks",
    what="a prefix hit compares lengths, not tokens",
    seen_in="vllm-mlx 444",
    needs="two prompts of which one has a full block at the same place as another",
)
