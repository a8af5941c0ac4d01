"""Drafts without a draft model: what followed the last time that the text said the same.

Prompt look-up decoding (Saxena 2023), as vLLM's `ngram` speculation: answers that quote their own
prompt, or repeat themselves, are drafted from there.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 3
"""Tokens that are looked for; fewer only where so many aren't found."""


class Drafter:
    """Drafts for one request: where each n-gram of its tokens was last followed by something.

    Tokens may only be appended between calls; each is indexed once, so a call costs what is new.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._ends: dict[tuple[int, ...], int] = {}
        """n-gram -> index of the token after its latest occurrence."""
        self._indexed = 0
        """Tokens before which all n-grams are indexed."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` tokens: those that followed the latest earlier occurrence of the last
        n tokens, for the largest n that has one; none where there is none."""
        self._index(tokens)
        for n in range(min(self._longest, len(tokens) - 1), 0, -1):
            end = self._ends.get(tuple(tokens[-n:]))
            if end is not None:
                return tuple(tokens[end : end + limit])
        return ()

    def _index(self, tokens: Sequence[int]) -> None:
        """Up to the last token: the n-grams that end there are what is looked for."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for n in range(1, min(self._longest, end) + 1):
                self._ends[tuple(tokens[end - n : end])] = end
        self._indexed = max(self._indexed, len(tokens))
