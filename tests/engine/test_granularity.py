"""Where a shared prefix may end, by unit."""

from __future__ import annotations

from collections.abc import Sequence, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.engine.content import Content
from kvrewind.engine.granularity import Granularity, Rest, Unit, paragraph_ends

SIZE = 4
STOP = 9


def contents_of(tokens: Sequence[int]) -> list[Content]:
    made: list[Content] = []
    for start in range(0, len(tokens) // SIZE * SIZE, SIZE):
        parent = made[-1] if made else None
        made.append(Content(parent, tuple(tokens[start : start + SIZE]), None))
    return made


class Ended:
    """What earlier requests were, as plain token lists; published but for their last token where
    `is_sampled` (nobody computes what was sampled last)."""

    def __init__(self, *earlier: Sequence[int], is_sampled: bool = False) -> None:
        self._earlier, self._is_sampled = earlier, is_sampled

    def ends_after(self, content: Content) -> Set[Rest]:
        found = set()
        for tokens in self._earlier:
            blocks = (len(tokens) - self._is_sampled) // SIZE
            if blocks and contents_of(tokens)[blocks - 1] == content:
                found.add(tuple(tokens[blocks * SIZE :]))
        return found


def whole(
    granularity: Granularity,
    found: int,
    tokens: Sequence[int],
    ends: Ended | None = None,
    stops: Set[int] = frozenset({STOP}),
) -> int:
    contents = contents_of(tokens)
    unit = Unit(granularity, stops)
    return unit.whole(found, tokens, SIZE, contents.__getitem__, ends or Ended())


TEXT = [1, 2, 3, 4, 5, STOP, 6, 7, 8, 1, 2, STOP, 3, 4]


def test_any_full_block_may_end_it_by_default() -> None:
    assert [whole("block", n, TEXT) for n in range(4)] == [0, 1, 2, 3]


def test_a_paragraph_may_end_it_floored_to_whole_blocks() -> None:
    # paragraphs end behind the tokens 5 and 11, that is after 6 and after 12 tokens
    assert [whole("paragraph", n, TEXT) for n in range(4)] == [0, 0, 1, 3]


def test_a_model_without_paragraphs_shares_block_by_block() -> None:
    assert whole("paragraph", 2, TEXT, stops=frozenset()) == 2


def test_only_the_whole_prompt_of_an_earlier_request_is_shared() -> None:
    earlier = TEXT[:6]  # one full block, and two tokens
    assert whole("prompt", 3, TEXT) == 0
    assert whole("prompt", 3, TEXT, Ended(earlier)) == 1
    assert whole("prompt", 3, TEXT, Ended(earlier, TEXT[:9])) == 2, "the longest counts"


def test_a_unit_that_differs_behind_its_last_full_block_is_not_the_same_unit() -> None:
    assert whole("prompt", 3, TEXT, Ended([*TEXT[:5], 7])) == 0
    assert whole("prompt", 1, TEXT[:5], Ended(TEXT[:6])) == 0, "longer than the whole request"


def test_an_equal_prompt_is_shared_although_its_last_token_is_computed_again() -> None:
    assert whole("prompt", 1, TEXT[:8], Ended(TEXT[:8])) == 1
    assert whole("prompt", 1, TEXT, Ended(TEXT[:8])) == 0, "its second block is gone"


def test_a_sequence_ends_with_a_token_that_nobody_computed() -> None:
    told = TEXT[:8]  # 7 tokens computed: one full block
    assert whole("sequence", 1, TEXT, Ended(told, is_sampled=True)) == 1
    assert whole("sequence", 1, [*TEXT[:7], 5, 5], Ended(told, is_sampled=True)) == 0


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=20),
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), max_size=4),
    st.data(),
)
def test_the_cut_is_the_longest_whole_unit_among_what_was_found(
    tokens: list[int], earlier: list[list[int]], data: st.DataObject
) -> None:
    earlier += [tokens[:n] for n in data.draw(st.lists(st.integers(1, len(tokens)), max_size=3))]
    usable = (len(tokens) - 1) // SIZE
    found = data.draw(st.integers(0, usable))
    known = [e for e in earlier if e == tokens[: len(e)]]
    ends = [len(e) // SIZE for e in known if len(e) // SIZE <= found]
    if tokens in known and found == usable:
        ends.append(found)
    assert whole("prompt", found, tokens, Ended(*earlier)) == max(ends, default=0)


def test_blocks_that_are_just_being_computed_are_worth_waiting_for_if_they_end_a_unit() -> None:
    def promised(granularity: Granularity, prompt: Sequence[int]) -> int:
        return Unit(granularity, frozenset({STOP})).promised(2, TEXT, SIZE, prompt)

    assert promised("block", TEXT[:9]) == 2
    assert promised("paragraph", TEXT[:9]) == 1
    assert promised("prompt", TEXT[:9]) == 2
    assert promised("prompt", [*TEXT[:9], 1, 1]) == 0
    assert promised("sequence", TEXT[:9]) == 0


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        (["a", "\n", ".\n\n", "\n \n", "x.", "."], {2, 3}),
        (["a", "\n", " .", ".", "...", "a.b"], {2, 3}),
        (["a", "\n", "b"], set()),
    ],
)
def test_a_blank_line_ends_a_paragraph_or_else_a_full_stop(
    pieces: list[str], ends: set[int]
) -> None:
    assert paragraph_ends(enumerate(pieces)) == ends
