"""`mask` (F14): query q sees key k iff same sequence, k <= q, and q - k < window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hand import PAD, Bits, Row, Trace, clean, decode, finding, found, leak, packed

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)
LAYOUTS = ["concatenated", "pool", "per_row"]


def decoding(**config: Any) -> tuple[Trace, Row, Row]:
    """a (4 tokens) and b (6 tokens) have computed their prompts; their decode rows of step 2."""
    t = Trace(**config)
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51, 52), [2, 3])
    t.step(1, a, b, sampled={"a": 15, "b": 35})
    t.alloc(4, "a", 1, step=2)
    return t, decode("a", 15, (1, 4), 4), decode("b", 35, (2, 3), 6)


def prefilling(**config: Any) -> tuple[Trace, Row, Row]:
    t = Trace(**config)
    return t, t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51, 52), [2, 3])


def column(keys: str, row: Row, position: int, base: int) -> int:
    return {"concatenated": base + position, "pool": row.slot(position, 4), "per_row": position}[
        keys
    ]


@pytest.mark.parametrize("keys", LAYOUTS)
def test_right_dense_masks_are_clean(keys: str) -> None:
    t, a, b = prefilling()
    t.step(1, a, b, keys=keys, sampled={"a": 15, "b": 35})
    t.alloc(4, "a", 1, step=2)
    t.step(2, decode("a", 15, (1, 4), 4), decode("b", 35, (2, 3), 6), keys=keys,
           sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    clean(t)


@pytest.mark.parametrize("keys", LAYOUTS)
def test_right_dense_masks_with_pads_and_sentinels_are_clean(keys: str) -> None:
    t = Trace(sentinels=[0])
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51, 52), [2, 3])
    t.step(1, a, b, PAD, keys=keys, sampled={"a": 15, "b": 35})
    t.end()
    clean(t)


def test_lengths_and_no_masks_at_all_are_clean() -> None:
    for without in ([], ["MaskBuilt"]):
        t, a, b = prefilling()
        t.step(1, a, b, without=without, sampled={"a": 15, "b": 35})
        t.end()
        clean(t)


@pytest.mark.parametrize("keys", LAYOUTS)
def test_a_later_token_of_ones_own_violates_with_its_exact_index(keys: str) -> None:
    t, a, b = prefilling()
    col = column(keys, b, 3, 4)
    s = t.step(
        1, a, b, keys=keys, edit=lambda bits: bits[4 + 2].add(col), sampled={"a": 15, "b": 35}
    )
    t.end()
    found(
        t, "violated",
        finding("mask", "F14", s.mask, victim="b", row=1, query=6, key=col, expected=False,
                actual=True),
    )  # fmt: skip


@pytest.mark.parametrize("keys", LAYOUTS)
def test_every_query_seeing_one_too_many_is_one_finding_a_row(keys: str) -> None:
    """mask-off-by-one"""
    t, a, b = prefilling()

    def edit(bits: Bits) -> None:
        for i, (row, base, n) in enumerate(((a, 0, 4), (b, 4, 6))):
            start = 0 if i == 0 else 4
            for q in range(n - 1):
                bits[start + q].add(column(keys, row, q + 1, base))

    s = t.step(1, a, b, keys=keys, edit=edit, sampled={"a": 15, "b": 35})
    t.end()
    report = t.judged()
    assert report["verdict"] == "violated"
    assert {(f["check"], f["class"], f["culprit_seq"]) for f in report["findings"]} == {
        ("mask", "F14", s.mask)
    }
    assert [f["root"] for f in report["findings"]].count(True) == 1
    assert report["findings"][0]["query"] == 0


@pytest.mark.parametrize("keys", LAYOUTS)
def test_an_own_key_that_is_hidden_violates(keys: str) -> None:
    t, a, b = decoding()
    col = column(keys, b, 2, 5)
    s = t.step(2, a, b, keys=keys, edit=lambda bits: bits[1].discard(col), sampled={"a": 16})
    t.end()
    found(
        t, "violated",
        finding("mask", "F14", s.mask, victim="b", row=1, query=1, key=col, expected=True,
                actual=False),
    )  # fmt: skip


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_a_foreign_key_leaks_with_its_exact_index(keys: str) -> None:
    t, a, b = decoding()
    col = column(keys, b, 3, 5)
    s = t.step(2, a, b, keys=keys, edit=lambda bits: bits[0].add(col), sampled={"a": 16, "b": 36})
    t.end()
    found(
        t, "contaminated",
        finding("mask", "F14", s.mask, victim="a", source="b", row=0, query=0, key=col, slot=11,
                expected=False, actual=True),
        leak("F14", s.mask, victim="a", source="b", row=0, query=0, key=col, slot=11, block=2),
    )  # fmt: skip


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_a_mask_that_is_all_true_leaks_both_ways(keys: str) -> None:
    """mask-padding-only: no causal order, no ownership."""
    t, a, b = decoding()

    def edit(bits: Bits) -> None:
        everything = set(range(t.width([a, b], keys)))
        bits[0], bits[1] = set(everything), set(everything)

    s = t.step(2, a, b, keys=keys, edit=edit, sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F14", s.mask)}
    assert {f["check"] for f in report["findings"]} == {"mask", "foreign-read"}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    reads = {(f["victim"], f["source"]) for f in report["findings"] if f["check"] == "foreign-read"}
    assert reads == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_an_inverted_mask_leaks(keys: str) -> None:
    t, a, b = decoding()

    def edit(bits: Bits) -> None:
        everything = set(range(t.width([a, b], keys)))
        bits[0], bits[1] = everything - bits[0], everything - bits[1]

    s = t.step(2, a, b, keys=keys, edit=edit, sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["check"], f["culprit_seq"]) for f in report["findings"] if f["root"]} == {
        ("mask", s.mask)
    } or {f["check"] for f in report["findings"] if f["root"]} == {"row-identity"}


def test_a_mask_on_the_wrong_axis_leaks() -> None:
    """Causal order stays and ownership is lost: each query sees all rows' keys up to its place."""
    t, a, b = prefilling()

    def edit(bits: Bits) -> None:
        for start, n in ((0, 4), (4, 6)):
            for q in range(n):
                bits[start + q] = {c for c in range(q + 1) if c < 4} | {4 + c for c in range(q + 1)}

    s = t.step(1, a, b, keys="concatenated", edit=edit, sampled={"a": 15, "b": 35})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F14", s.mask)}
    assert [f["root"] for f in report["findings"]].count(True) == 1


@pytest.mark.parametrize("keys", LAYOUTS)
def test_a_row_that_sees_nothing_violates(keys: str) -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys=keys, edit=lambda bits: bits[0].clear(), sampled={"a": 16, "b": 36})
    t.end()
    found(t, "violated", finding("mask", "F14", s.mask, victim="a", row=0, query=0, actual=False))


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_a_row_that_sees_nothing_under_a_finite_fill_leaks(keys: str) -> None:
    """All keys are filled alike, so all of them get the same weight."""
    t, a, b = decoding()
    s = t.step(2, a, b, keys=keys, edit=lambda bits: bits[0].clear(),
               mask={"meaning": "additive", "dtype": "float32", "fill": -1e9},
               sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F14", s.mask)}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    assert {
        (f["victim"], f["source"]) for f in report["findings"] if f["check"] == "foreign-read"
    } == {("a", "b")}


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_a_boolean_mask_that_is_added_shows_everything(keys: str) -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys=keys, mask={"meaning": "additive", "dtype": "bool"},
               sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F14", s.mask)}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    reads = {(f["victim"], f["source"]) for f in report["findings"] if f["check"] == "foreign-read"}
    assert reads == {("a", "b"), ("b", "a")}


def test_a_boolean_mask_that_is_added_for_one_row_alone_violates() -> None:
    """Its own later keys are shown; nobody else's are there."""
    t = Trace()
    a = t.admit(1, "a", P, [1])
    s = t.step(1, a, keys="concatenated", mask={"meaning": "additive", "dtype": "bool"},
               sampled={"a": 15})  # fmt: skip
    t.end()
    found(t, "violated", finding("mask", "F14", s.mask, victim="a"))


def test_a_boolean_mask_added_after_softmax_or_before_is_still_no_mask_by_lengths() -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, mask={"meaning": "additive", "dtype": "bool"}, sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    assert [f["check"] for f in report["findings"] if f["root"]] == ["mask"]
    assert report["findings"][0]["culprit_seq"] == s.mask


@pytest.mark.parametrize("keys", LAYOUTS)
def test_a_mask_applied_after_softmax_violates_and_leaks_nothing(keys: str) -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys=keys, mask={"applied": "after_softmax"}, sampled={"a": 16, "b": 36})
    t.end()
    found(t, "violated", finding("mask", "F14", s.mask))


def test_a_mask_after_softmax_that_also_allows_foreign_keys_leaks_those() -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys="concatenated", mask={"applied": "after_softmax"},
               edit=lambda bits: bits[0].add(5), sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F14", s.mask)}
    assert [f["root"] for f in report["findings"]].count(True) == 1


@pytest.mark.parametrize("fill", [-5.0, -100.0, 0.0, -9999.0])
def test_a_weak_finite_fill_shows_all_its_keys(fill: float) -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys="concatenated",
               mask={"meaning": "additive", "dtype": "float32", "fill": fill},
               sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F14", s.mask)}
    root = report["findings"][0]
    assert (root["check"], root["root"], root["actual"]) == ("mask", True, fill)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("float32", -1e4), ("float32", -1e9), ("float32", "-inf"), ("float16", -65504.0),
     ("float16", -1e9), ("bfloat16", -1e30), ("torch.float32", -1e9), ("float16", -1e4)],
)  # fmt: skip
def test_a_strong_fill_is_clean(dtype: str, fill: float) -> None:
    t, a, b = decoding()
    t.step(2, a, b, keys="concatenated", mask={"meaning": "additive", "dtype": dtype, "fill": fill},
           sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    clean(t)


def test_a_fill_that_its_dtype_cannot_hold_is_weak() -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys="concatenated",
               mask={"meaning": "additive", "dtype": "float8_e4m3fn", "fill": -1e9},
               sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    assert t.judged()["findings"][0]["culprit_seq"] == s.mask


def test_an_additive_mask_without_a_fill_is_taken_for_minus_infinity() -> None:
    t, a, b = decoding()
    t.step(2, a, b, keys="concatenated", mask={"meaning": "additive", "dtype": "float32"},
           sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    clean(t)


# Windows.


def windowed(keys: str | None, window: int | None, edit: Callable[[Bits], None] | None = None):
    t = Trace(windows=[4])
    row = t.admit(1, "a", P + Q, [1, 2])
    s = t.step(1, row, keys=keys, window=window, edit=edit, sampled={"a": 15})
    t.end()
    return t, s


@pytest.mark.parametrize("keys", [None, *LAYOUTS])
def test_a_mask_with_its_groups_window_is_clean(keys: str | None) -> None:
    clean(windowed(keys, 4)[0])


@pytest.mark.parametrize("keys", LAYOUTS)
def test_a_dense_mask_without_its_groups_window_violates(keys: str) -> None:
    t, s = windowed(keys, None)
    found(t, "violated", finding("mask", "F14", s.mask, query=4, expected=False, actual=True))


@pytest.mark.parametrize("keys", LAYOUTS)
@pytest.mark.parametrize("wrong", [3, 5])
def test_a_dense_mask_with_another_window_violates(keys: str, wrong: int) -> None:
    t, s = windowed(keys, wrong)
    found(t, "violated", finding("mask", "F14", s.mask, query=min(wrong, 4), actual=wrong == 5))


def test_a_length_mask_with_another_window_violates() -> None:
    t, s = windowed(None, 5)
    found(t, "violated", finding("mask", "F14", s.mask, expected=4, actual=5))


def test_a_window_that_only_the_mask_names_is_taken_at_its_word() -> None:
    """Layers of one KV group may differ in their windows, which the header can't tell."""
    for keys in (None, "pool"):
        t = Trace()
        t.step(1, t.admit(1, "a", P + Q, [1, 2]), keys=keys, window=4, sampled={"a": 15})
        t.end()
        clean(t)


def test_a_window_that_shows_a_released_block_leaks() -> None:
    """The mask forgets the window, and the block behind it is another's by now."""
    t = Trace(windows=[4])
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), window=4, sampled={"a": 15})
    t.release(1, "a", 0, 0)
    t.free(1)
    t.step(2, t.admit(2, "b", R, [1]), window=4, sampled={"b": 35})
    t.alloc(3, "a", 2, step=3)
    row = decode("a", 15, (-1, 2, 3), 8)
    s = t.step(3, row, keys="pool", window=4, edit=lambda bits: bits[0].update(range(4, 8)),
               sampled={"a": 16})  # fmt: skip
    t.end()
    found(
        t, "contaminated",
        finding("mask", "F14", s.mask, victim="a", source="b", row=0, query=0, key=4),
        leak("F14", s.mask, victim="a", source="b", block=1, slot=4),
    )  # fmt: skip


# Several masks and steps.


def test_masks_of_several_layers_are_each_judged() -> None:
    t, a, b = decoding()
    t.schedule([a, b]), t.build([a, b])
    t.mask([a, b], "concatenated", layers=[0])
    wrong = t.mask([a, b], "concatenated", lambda bits: bits[0].add(5), layers=[1])
    t.event("StepDispatched"), t.write([a, b]), t.event("StepCompleted")
    t.end()
    found(
        t, "contaminated", finding("mask", "F14", wrong, victim="a"), leak("F14", wrong, victim="a")
    )  # fmt: skip


def test_the_same_wrong_mask_in_each_step_is_a_finding_each_and_one_root() -> None:
    t, a, b = decoding()
    first = t.step(2, a, b, keys="concatenated", edit=lambda bits: bits[0].add(5),
                   sampled={"a": 16, "b": 36})  # fmt: skip
    second = t.step(3, decode("a", 16, (1, 4), 5), decode("b", 36, (2, 3), 7),
                    keys="concatenated", edit=lambda bits: bits[0].add(6))  # fmt: skip
    t.end()
    report = t.judged()
    masks = [f for f in report["findings"] if f["check"] == "mask"]
    assert [(f["culprit_seq"], f["root"]) for f in masks] == [
        (first.mask, True), (second.mask, False),
    ]  # fmt: skip


def test_pads_may_see_anything() -> None:
    t = Trace(sentinels=[0])
    a = t.admit(1, "a", P, [1])
    t.step(1, a, PAD, keys="concatenated", edit=lambda bits: bits[4].update(range(4)),
           sampled={"a": 15})  # fmt: skip
    t.end()
    clean(t)


def test_a_mask_of_a_prefix_hit_sees_the_shared_keys() -> None:
    for keys in LAYOUTS:
        t = Trace()
        t.step(1, t.admit(1, "a", P, [1]), keys=keys, sampled={"a": 15})
        t.register(1, "k1", "a", P)
        t.add("b", (*P, 61), step=2)
        t.share(1, "b", 0, 2, "k1")
        t.alloc(2, "b", 1)
        t.step(2, Row("b", (61,), (1, 2), 4), keys=keys, sampled={"b": 16})
        t.end()
        clean(t)


@pytest.mark.parametrize("keys", LAYOUTS)
def test_a_dense_mask_padded_to_more_columns_is_clean(keys: str) -> None:
    t, a, b = prefilling()
    t.number = 1
    t.schedule([a, b]), t.build([a, b])
    bits = t.visible([a, b], keys)
    t.mask([a, b], keys, allowed=packed(bits, t.width([a, b], keys) + 64))
    t.event("StepDispatched"), t.write([a, b]), t.event("StepCompleted")
    t.end()
    clean(t)


def test_a_dense_mask_with_too_few_columns_hides_the_rest() -> None:
    """The mask of the step before: as wide as its rows were then."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), keys="per_row", sampled={"a": 15})
    t.alloc(3, "a", 2, step=2)
    row = decode("a", 15, (1, 2, 3), 8)
    t.schedule([row]), t.build([row])
    wrong = t.mask([row], "per_row", allowed=packed([set(range(8))], 8))
    t.event("StepDispatched"), t.write([row]), t.event("StepCompleted")
    t.end()
    found(
        t, "violated",
        finding("mask", "F14", wrong, victim="a", query=0, key=8, expected=True, actual=False),
    )  # fmt: skip


def test_a_dense_mask_whose_bytes_are_no_whole_rows_violates() -> None:
    t, a, b = decoding()
    s = t.step(2, a, b, keys="concatenated", mask={"allowed": "ffffff"}, sampled={"a": 16})
    t.end()
    found(t, "violated", finding("mask", "F14", s.mask))


@pytest.mark.parametrize("absent", ["allowed", "keys"])
def test_a_dense_mask_that_does_not_tell_its_keys_is_incomplete(absent: str) -> None:
    t, a, b = decoding()
    t.step(2, a, b, keys="concatenated", sampled={"a": 16, "b": 36})
    del next(x for x in t.lines if x.get("form") == "dense")[absent]
    t.end()
    report = t.judged()
    assert report["findings"] == []
    assert report["verdict"] == "incomplete"
    assert "MaskBuilt" in " ".join(report["missing"])
