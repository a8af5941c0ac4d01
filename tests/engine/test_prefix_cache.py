"""What the prefix index finds, and what it says where it finds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.content import Content, extra_keys_in
from kvrewind.engine.contents import Contents
from kvrewind.engine.miss import why_missed
from kvrewind.engine.prefix_cache import Entry, PrefixCache
from kvrewind.engine.request import Prompt, Request

SIZE = 4


def request_of(tokens: Sequence[int], **how: Any) -> Request:
    return Request.of(Prompt(request="r", prompt_tokens=tuple(tokens), max_new_tokens=1, **how))


def chain(tokens: Sequence[int], tenant: str | int | None = None, **how: Any) -> list[Content]:
    """The contents of a request's full blocks, one by one."""
    made: list[Content] = []
    keys = how.pop("extra_keys", ())
    for start in range(0, len(tokens) // SIZE * SIZE, SIZE):
        own = extra_keys_in(keys, range(start, start + SIZE))
        block, parent = tuple(tokens[start : start + SIZE]), made[-1] if made else None
        made.append(Content(parent, block, tenant, extra_keys=own, **how))
    return made


def cache_of(*chains: Sequence[Content]) -> PrefixCache:
    cache = PrefixCache()
    for content in [c for contents in chains for c in contents]:
        cache.add(Entry(len(list(cache.entries())), content, content.key))
    return cache


def missed_because(cache: PrefixCache, tokens: Sequence[int], **how: Any) -> str | None:
    usable = chain(tokens, **how)[: (len(tokens) - 1) // SIZE]
    found = next((i for i, c in enumerate(usable) if not cache.holding(c)), len(usable))
    return why_missed(
        found=found,
        shared=found,
        missed=usable[found] if found < len(usable) else None,
        num_tokens=len(tokens),
        block_size=SIZE,
        granularity="block",
        index=cache,
    )


A = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]

DIFFERENT = [
    {"tenant": "b"},
    {"tenant": 1},
    {"adapter": "lora"},
    {"adapter": "a"},
    {"epoch": 2},
    {"extra_keys": ((0, "image"),)},
    {"extra_keys": ((1, "image"),)},
    {"extra_keys": ((0, "salt"),)},
    {"extra_keys": ((0, "image"), (1, "salt"))},
]


@pytest.mark.parametrize("how", DIFFERENT)
def test_whatever_colours_a_block_is_part_of_its_content(how: dict[str, Any]) -> None:
    others = [chain(A, **other)[-1] for other in DIFFERENT if other != how] + chain(A)[-1:]
    assert chain(A, **how)[-1] not in others
    assert chain(A, **how)[-1].key not in {other.key for other in others}
    assert chain(A, **how)[-1] == chain(A, **how)[-1]


def test_extra_keys_colour_the_block_in_which_they_begin_and_those_after_it() -> None:
    plain, late = chain(A), chain(A, extra_keys=((5, "image"),))
    assert [a == b for a, b in zip(plain, late, strict=True)] == [True, False]
    assert [content.extra_keys for content in late] == [(), ((5, "image"),)]
    swapped = chain(A, extra_keys=((5, "y"), (1, "x")))
    assert swapped == chain(A, extra_keys=((1, "x"), (5, "y"))), "their order is no matter"


def test_a_plain_content_keeps_the_key_that_older_traces_have() -> None:
    assert [c.key for c in chain(A, tenant="a")] == [
        "b0965c3165b8ac15ee42f821828ba778",
        "a8bef3b697bea2e682eb3edf4d090c47",
    ]


def test_equal_tokens_after_another_parent_are_another_content() -> None:
    assert chain([1, 2, 3, 4, 5, 6, 7, 8])[1] != chain([1, 2, 3, 3, 5, 6, 7, 8])[1]


def test_contents_are_compared_and_not_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrewind.engine.content.key_of", lambda *parts: "the same for all")
    contents = Contents(SIZE)
    one, two = contents.of(request_of([1, 2, 3, 4]), 0), contents.of(request_of([1, 2, 3, 5]), 0)
    assert (one.key, one == two) == (two.key, False)
    assert cache_of([one]).holding(two) is None
    assert contents.of(request_of([1, 2, 3, 5]), 0) == two


def test_a_request_says_itself_what_its_blocks_hold() -> None:
    how: dict[str, Any] = {"tenant": "a", "adapter": "lora", "extra_keys": ((5, "x"), (1, "y"))}
    request, contents = request_of(A, **how), Contents(SIZE)
    assert [contents.of(request, 0), contents.of(request, 1)] == chain(A, **how)


def test_equal_contents_are_one_object_while_somebody_holds_them() -> None:
    contents = Contents(SIZE)
    first, second = request_of(A, tenant="a"), request_of([*A[:4], 1, 1, 1, 1], tenant="a")
    assert contents.of(first, 0) is contents.of(second, 0)
    assert contents.of(first, 1) is not contents.of(second, 1)
    assert contents.of(request_of(A, tenant="b"), 0) is not contents.of(first, 0)


def test_the_tenant_is_left_out_only_where_all_may_share() -> None:
    mine, other = request_of(A, tenant="a"), request_of(A, tenant="b")
    assert Contents(SIZE, "global").of(mine, 1) == Contents(SIZE, "global").of(other, 1)
    assert Contents(SIZE, "global").of(mine, 1) == chain(A, tenant=None)[1]


def test_the_oldest_of_several_blocks_with_one_content_is_found() -> None:
    cache = cache_of(chain(A), chain(A))
    first, second = chain(A)
    assert [cache.holding(first), cache.holding(second)] == [
        Entry(0, first, first.key),
        Entry(1, second, second.key),
    ]
    cache.remove(Entry(0, first, first.key))
    assert cache.holding(first) == Entry(2, first, first.key)
    assert not cache.was_evicted(first), "another block still has it"


def test_a_lookup_that_got_all_there_is_gives_no_reason() -> None:
    assert missed_because(cache_of(chain(A)), A[:9]) is None
    assert missed_because(cache_of(chain(A)), A[:8]) is None, "the last token is always computed"
    assert missed_because(PrefixCache(), [1]) is None


def test_less_than_a_block_is_not_aligned() -> None:
    assert missed_because(cache_of(chain(A)), A) == "not aligned to a block"
    assert missed_because(cache_of(chain(A)), A[:3]) == "not aligned to a block"


def test_what_nobody_computed_was_never_seen() -> None:
    assert missed_because(PrefixCache(), A) == "never seen"
    assert missed_because(cache_of(chain(A)), [7, *A]) == "never seen"
    assert missed_because(cache_of(chain(A[:4])), A) == "never seen", "nobody went on from there"


@pytest.mark.parametrize("at", range(1, 8))
def test_the_first_token_that_differs_is_named(at: int) -> None:
    tokens = [*A[:at], 77, *A[at + 1 :]]
    cache = cache_of(chain(A), chain([1, 77, *A]), chain([*A[:4], 4, 77, 7, 8]))
    expected = 2 if at == 1 else at
    assert missed_because(cache, tokens) == f"first differing token at {expected}"


def test_evicted_content_is_called_so_until_it_comes_back() -> None:
    cache = cache_of(chain(A))
    entry = Entry(1, chain(A)[1], chain(A)[1].key)
    cache.remove(entry)
    assert missed_because(cache, A) == "evicted"
    cache.add(entry)
    assert missed_because(cache, A) == "not aligned to a block"


def test_what_was_void_after_a_reset_is_of_another_epoch() -> None:
    cache = cache_of(chain(A, tenant="a"))
    for entry in tuple(cache.entries()):
        cache.remove(entry, "reset")
    assert missed_because(cache, A, tenant="a", epoch=2) == "other epoch"
    assert missed_because(cache, A, tenant="b", epoch=2) == "never seen"
    cache.add(Entry(0, chain(A, tenant="a", epoch=2)[0], "key"))
    assert missed_because(cache, A[:5], tenant="a", epoch=2) is None


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"tenant": "b"}, "other tenant"),
        ({"tenant": "a", "adapter": "lora"}, "other adapter"),
        ({"tenant": "a", "epoch": 2}, "other epoch"),
        ({"tenant": "a", "extra_keys": ((6, "image"), (9, "later"))}, "other extra key at 6"),
        ({"tenant": "a", "extra_keys": ((2, "x"), (3, "image"))}, "other extra key at 2"),
    ],
)
def test_the_same_text_for_somebody_else_is_told_from_another_text(
    how: dict[str, Any], told: str
) -> None:
    assert missed_because(cache_of(chain(A, tenant="a")), A, **how) == told


def test_the_nearest_of_several_others_is_named() -> None:
    far, near = chain(A, tenant="a", adapter="lora"), chain(A, tenant="b")
    assert missed_because(cache_of(far, near), A, tenant="b", adapter="lora") == "other tenant"
    assert missed_because(cache_of(far, near), A, tenant="b", epoch=1) == "other epoch"


def test_another_text_of_another_tenant_is_not_compared() -> None:
    assert missed_because(cache_of(chain(A, tenant="a")), [*A[:3], 77, *A], tenant="b") == (
        "never seen"
    )


def test_the_end_of_a_unit_is_known_as_long_as_its_last_block_is_in_the_index() -> None:
    cache, (first, second) = cache_of(chain(A)), chain(A)
    cache.mark_end(second, [9])
    cache.mark_end(second, [9, 10])
    cache.mark_end(chain([3, 3, 3, 3])[0], [])
    assert (set(cache.ends_after(second)), set(cache.ends_after(first))) == ({(9,), (9, 10)}, set())
    cache.add(Entry(2, second, "another block"))
    cache.remove(Entry(1, second, second.key))
    assert cache.ends_after(second)
    cache.remove(Entry(2, second, "another block"))
    cache.add(Entry(3, second, second.key))
    assert not cache.ends_after(second)
    cache.add(Entry(4, chain([3, 3, 3, 3])[0], "key"))
    assert not cache.ends_after(chain([3, 3, 3, 3])[0]), "it wasn't in the index then"


def test_hits_cut_to_a_larger_unit_say_so() -> None:
    told = why_missed(
        found=2,
        shared=1,
        missed=None,
        num_tokens=10,
        block_size=SIZE,
        granularity="paragraph",
        index=PrefixCache(),
    )
    assert told == "cut to a whole paragraph"


texts = st.lists(st.integers(1, 2), min_size=1, max_size=3 * SIZE)
people = st.sampled_from([None, "a"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(texts, people), max_size=6), texts, people, st.data())
def test_reasons_agree_with_a_plain_search(
    earlier: list[tuple[list[int], str | None]],
    tokens: list[int],
    tenant: str | None,
    data: st.DataObject,
) -> None:
    """Blocks in the index as (tenant, all tokens up to its end)."""
    kept: dict[tuple[str | None, tuple[int, ...]], bool] = {}
    cache = PrefixCache()
    for text, who in earlier:
        for content in chain(text, tenant=who):
            if cache.holding(content) is None:
                cache.add(Entry(len(kept), content, content.key))
                kept[who, tuple(text[: (content.index + 1) * SIZE])] = True
    for entry in tuple(cache.entries()):
        if data.draw(st.booleans()):
            cache.remove(entry)
            blocks = [t for c in entry.content.chain() for t in c.tokens]
            kept[entry.content.tenant, tuple(blocks)] = False
    told = missed_because(cache, tokens, tenant=tenant)

    usable = (len(tokens) - 1) // SIZE
    prefixes = [tuple(tokens[: (i + 1) * SIZE]) for i in range(usable)]
    found = next((i for i, p in enumerate(prefixes) if not kept.get((tenant, p))), usable)
    if found == usable:
        rest = len(tokens) - usable * SIZE
        assert told == (None if rest in (1, SIZE) else "not aligned to a block")
        return
    wanted, other = prefixes[found], None if tenant else "a"
    after = [
        text
        for (who, text), live in kept.items()
        if live and who == tenant and len(text) == len(wanted)
        and text[:-SIZE] == wanted[:-SIZE]
    ]  # fmt: skip
    agreements = [
        next(i for i, (x, y) in enumerate(zip(text, wanted, strict=True)) if x != y)
        for text in after
    ]
    if (tenant, wanted) in kept:
        assert told == "evicted"
    elif kept.get((other, wanted)):
        assert told == "other tenant"
    elif max(agreements, default=0):
        assert told == f"first differing token at {max(agreements)}"
    else:
        assert told == "never seen"
