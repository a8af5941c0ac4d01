"""Drafts by look-up: what followed the latest earlier occurrence of the last tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.engine.ngram import Drafter

texts = st.lists(st.integers(0, 3), max_size=40)
"""Few different tokens, so that they repeat."""


def proposed_by_search(tokens: list[int], limit: int, longest: int) -> tuple[int, ...]:
    """The definition, by looking at every place from the last one on."""
    for n in range(longest, 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if n < len(tokens) and tokens[start : start + n] == tokens[-n:]:
                return tuple(tokens[start + n : start + n + limit])
    return ()


@pytest.mark.parametrize(
    ("tokens", "limit", "proposed"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, (4, 5)),
        ([1, 2, 3, 4, 5, 1, 2, 3], 1, (4,)),
        ([1, 2, 3, 4, 9, 2, 3, 5, 9, 2, 3], 3, (5, 9, 2)),  # the later of two
        ([1, 2, 3, 7, 8, 3, 6, 2, 3], 1, (7,)),  # two tokens that match, before one that is nearer
        ([4, 4, 4], 5, (4,)),  # no more than what is there
        ([1, 2, 3, 4], 3, ()),
        ([1], 3, ()),
        ([], 3, ()),
        ([1, 2, 1], 0, ()),
    ],
)
def test_what_followed_the_latest_longest_match_is_proposed(
    tokens: list[int], limit: int, proposed: tuple[int, ...]
) -> None:
    assert Drafter().propose(tokens, limit) == proposed


@given(texts, st.integers(1, 5), st.integers(1, 4))
def test_it_proposes_what_a_search_of_the_whole_text_would(
    tokens: list[int], limit: int, longest: int
) -> None:
    assert Drafter(longest).propose(tokens, limit) == proposed_by_search(tokens, limit, longest)


@given(st.lists(texts, max_size=8), st.integers(1, 5))
def test_asking_as_the_text_grows_gives_what_asking_once_would(
    pieces: list[list[int]], limit: int
) -> None:
    """Some tokens come one by one, some many at once, some questions twice."""
    index, tokens = Drafter(), []
    for piece in pieces:
        tokens += piece
        assert index.propose(tokens, limit) == proposed_by_search(tokens, limit, 3)


class Counted(list[int]):
    """Counts how often it is looked into."""

    looks = 0

    def __getitem__(self, at):  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(at)


def test_a_question_costs_what_is_new_and_not_the_whole_text() -> None:
    index, tokens = Drafter(), Counted(range(2000))
    index.propose(tokens, 4)
    first = tokens.looks
    tokens.append(7)
    index.propose(tokens, 4)
    assert first >= 2000
    assert tokens.looks - first <= 10
