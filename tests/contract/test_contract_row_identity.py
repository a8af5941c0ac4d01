"""`row-identity` (F11): the arrays of a step agree about which row is whose."""

from __future__ import annotations

import pytest
from hand import PAD, Row, Trace, clean, decode, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def two(**config: object) -> tuple[Trace, Row, Row]:
    """a (4 tokens) and b (6 tokens) have computed their prompts; their decode rows of step 2."""
    t = Trace(**config)  # type: ignore[arg-type]
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51, 52), [2, 3])
    t.step(1, a, b, sampled={"a": 15, "b": 35})
    t.alloc(4, "a", 1, step=2)
    return t, decode("a", 15, (1, 4), 4), decode("b", 35, (2, 3), 6)


def test_rows_in_another_order_than_scheduled_are_clean() -> None:
    t, a, b = two()
    t.schedule([a, b])
    t.build([b, a]), t.mask([b, a]), t.event("StepDispatched"), t.write([a, b])
    t.event("StepCompleted"), t.sample([b, a], {"a": 16, "b": 36})
    t.end()
    clean(t)


def test_a_token_sampled_from_another_row_is_contaminated_by_the_sample() -> None:
    t, a, b = two()
    s = t.step(2, a, b, sampled={"a": 16, "b": 36}, samples={"rows": [1, 0]})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    first = report["findings"][0]
    assert (first["check"], first["class"], first["root"]) == ("row-identity", "F11", True)
    assert (first["culprit_seq"], first["victim"], first["source"], first["row"]) == (
        s.sampled, "a", "b", 1,
    )  # fmt: skip
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_a_token_sampled_from_a_pad_row_is_contaminated() -> None:
    t, a, b = two()
    s = t.step(2, a, b, PAD, sampled={"a": 16}, samples={"rows": [2]})
    t.end()
    found(
        t, "contaminated",
        finding("row-identity", "F11", s.sampled, victim="a", source=None, row=2),
    )  # fmt: skip


def test_a_token_sampled_from_a_row_that_does_not_exist_is_contaminated() -> None:
    t, a, b = two()
    s = t.step(2, a, b, sampled={"a": 16}, samples={"rows": [9]})
    t.end()
    report = t.judged()
    assert report["findings"][0]["culprit_seq"] == s.sampled
    assert report["verdict"] in ("contaminated", "violated")


def test_tokens_of_another_row_are_blamed_on_the_build() -> None:
    t, a, b = two()
    s = t.step(2, a, b, built={"tokens": [35, 35]}, written={}, sampled={"a": 16, "b": 36})
    t.end()
    found(
        t, "violated",
        finding("row-identity", "F11", s.built, victim="a", source="b", row=0, expected=15,
                actual=35),
    )  # fmt: skip


def test_tokens_that_are_nobodys_are_blamed_on_the_build() -> None:
    t, a, b = two()
    s = t.step(2, a, b, built={"tokens": [99, 35]}, sampled={"a": 16, "b": 36})
    t.end()
    found(t, "violated", finding("row-identity", "F11", s.built, victim="a", row=0, actual=99))


def test_one_wrong_token_inside_a_prompt_names_its_query() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    s = t.step(1, a, b, built={"tokens": [*P, 31, 99, 33, 34]}, sampled={"a": 15, "b": 35})
    t.end()
    found(
        t, "violated",
        finding("row-identity", "F11", s.built, victim="b", row=1, query=5, expected=32, actual=99),
    )  # fmt: skip


def test_a_length_equal_to_another_rows_is_row_identity() -> None:
    """condense-misses-array: a's seq_len is b's, beyond what a has written or even holds."""
    for other in (7,):
        t, a, b = two()
        s = t.step(2, a, b, built={"seq_lens": [other, 7]}, sampled={"a": 16, "b": 36})
        t.end()
        report = t.judged()
        root = report["findings"][0]
        assert (root["check"], root["class"], root["culprit_seq"], root["row"]) == (
            "row-identity", "F11", s.built, 0,
        )  # fmt: skip
        assert [f["root"] for f in report["findings"]].count(True) == 1
        assert report["verdict"] == "violated"


def test_swapped_lengths_are_one_finding_each_and_one_root() -> None:
    t, a, b = two()
    s = t.step(2, a, b, built={"seq_lens": [7, 5]}, sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    assert {(f["check"], f["class"], f["culprit_seq"]) for f in report["findings"]} == {
        ("row-identity", "F11", s.built)
    }
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_a_table_equal_to_another_rows_is_row_identity() -> None:
    t, a, b = two()
    s = t.step(2, a, b, built={"block_tables": [[2, 3], [2, 3]]}, sampled={"a": 16, "b": 36})
    t.end()
    findings = t.judged()
    first = findings["findings"][0]
    assert findings["verdict"] == "contaminated"
    assert (first["check"], first["class"], first["culprit_seq"], first["victim"]) == (
        "row-identity", "F11", s.built, "a",
    )  # fmt: skip
    assert {f["class"] for f in findings["findings"]} == {"F11"}
    assert [f["root"] for f in findings["findings"]].count(True) == 1
    reads = [f for f in findings["findings"] if f["check"] == "foreign-read"]
    assert ("a", "b") in [(f["victim"], f["source"]) for f in reads]


def test_swapped_tables_are_row_identity_with_both_leaks() -> None:
    t, a, b = two()
    s = t.step(
        2, a, b,
        built={"block_tables": [[2, 3], [1, 4]], "slot_mapping": [12, 18]},
        written={"slots": [12, 18]}, sampled={"a": 16, "b": 36},
    )  # fmt: skip
    t.end()
    report = t.judged()
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F11", s.built)}
    assert {f["check"] for f in report["findings"]} == {"row-identity", "foreign-read"}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    reads = {(f["victim"], f["source"]) for f in report["findings"] if f["check"] == "foreign-read"}
    assert {("a", "b"), ("b", "a")} <= reads


def test_a_whole_row_equal_to_another_rows_is_row_identity_alone() -> None:
    t, a, b = two()
    s = t.step(
        2, a, b,
        built={
            "tokens": [35, 35], "seq_lens": [7, 7], "block_tables": [[2, 3], [2, 3]],
            "positions": [6, 6], "slot_mapping": [14, 14],
        },
        written={"slots": [14, 14]}, sampled={"a": 16, "b": 36},
    )  # fmt: skip
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {f["class"] for f in report["findings"]} == {"F11"}
    assert {f["check"] for f in report["findings"]} == {"row-identity", "foreign-read"}
    assert {f["culprit_seq"] for f in report["findings"]} == {s.built}
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_query_lens_shifted_against_the_rows_are_row_identity() -> None:
    """cu-seqlens-off-by-one: a is given one token of b's."""
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51), [2, 3])
    s = t.step(1, a, b, built={"query_lens": [5, 4]}, sampled={"a": 15, "b": 35})
    t.end()
    report = t.judged()
    assert {(f["check"], f["class"], f["culprit_seq"]) for f in report["findings"]} == {
        ("row-identity", "F11", s.built)
    }
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_a_request_in_two_rows_is_row_identity() -> None:
    t, a, b = two()
    s = t.step(2, a, b, built={"requests": ["b", "b"]})
    t.end()
    report = t.judged()
    assert report["findings"][0]["check"] == "row-identity"
    assert report["findings"][0]["culprit_seq"] == s.built
    assert [f["root"] for f in report["findings"]].count(True) == 1


@pytest.mark.parametrize("keys", [None, "concatenated", "pool", "per_row"])
def test_mask_rows_in_another_order_than_built_are_blamed_on_the_mask(keys: str | None) -> None:
    t, a, b = two()
    s = t.step(2, a, b, keys=keys, mask={"requests": ["b", "a"]}, sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    first = report["findings"][0]
    assert (first["check"], first["class"], first["culprit_seq"], first["row"]) == (
        "row-identity", "F11", s.mask, 0,
    )  # fmt: skip
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_mask_query_lens_other_than_built_are_blamed_on_the_mask() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51), [2, 3])
    s = t.step(1, a, b, mask={"query_lens": [5, 4]}, sampled={"a": 15, "b": 35})
    t.end()
    report = t.judged()
    assert {(f["check"], f["class"], f["culprit_seq"]) for f in report["findings"]} == {
        ("row-identity", "F11", s.mask)
    }


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_a_mask_row_built_from_another_row_is_row_identity_and_leaks(keys: str) -> None:
    """mask-batch-index"""
    t, a, b = two()

    def edit(bits: list[set[int]]) -> None:
        bits[0] = set(bits[1])

    s = t.step(2, a, b, keys=keys, edit=edit, sampled={"a": 16, "b": 36})
    t.end()
    found(
        t, "contaminated",
        finding("row-identity", "F11", s.mask, victim="a", source="b", row=0, query=0),
        leak("F11", s.mask, victim="a", source="b", row=0, query=0),
    )  # fmt: skip


@pytest.mark.parametrize("keys", ["concatenated", "pool"])
def test_swapped_mask_rows_are_row_identity_once_a_row(keys: str) -> None:
    t, a, b = two()

    def edit(bits: list[set[int]]) -> None:
        bits[0], bits[1] = bits[1], bits[0]

    s = t.step(2, a, b, keys=keys, edit=edit, sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F11", s.mask)}
    assert {f["check"] for f in report["findings"]} == {"row-identity", "foreign-read"}
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_a_prefill_rows_mask_taken_from_another_prefill_row_is_row_identity() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])

    def edit(bits: list[set[int]]) -> None:
        bits[0:4] = [set(x) for x in bits[4:8]]

    s = t.step(1, a, b, keys="pool", edit=edit, sampled={"a": 15, "b": 35})
    t.end()
    found(
        t, "contaminated",
        finding("row-identity", "F11", s.mask, victim="a", source="b", row=0),
        leak("F11", s.mask, victim="a", source="b", row=0),
    )  # fmt: skip


def test_pads_between_and_after_rows_are_clean() -> None:
    t, a, b = two(sentinels=[0])
    rows = a, PAD, b, PAD
    t.step(2, *rows, sampled={"a": 16, "b": 36})
    t.end()
    clean(t)


def test_a_mask_without_the_trailing_pads_is_clean() -> None:
    t, a, b = two()
    t.step(2, a, b, PAD, mask={"requests": ["a", "b"], "query_lens": [1, 1]},
           sampled={"a": 16, "b": 36})  # fmt: skip
    t.end()
    clean(t)


def test_a_token_that_is_sampled_later_than_it_is_given_is_clean_if_right() -> None:
    """Two steps in flight: step 3 is built before step 2's token is logged."""
    t, a, _ = two()
    t.schedule([a]), t.build([a]), t.mask([a]), t.event("StepDispatched")
    nxt = decode("a", 16, (1, 4), 5)
    t.number = 3
    t.schedule([nxt]), t.build([nxt]), t.mask([nxt]), t.event("StepDispatched")
    t.write([a], step=2), t.event("StepCompleted", 2)
    t.sample([a], {"a": 16}, step=2)
    t.write([nxt], step=3), t.event("StepCompleted", 3)
    t.end()
    clean(t)


def test_a_token_given_before_it_was_sampled_must_be_that_token() -> None:
    t, a, _ = two()
    t.schedule([a]), t.build([a]), t.mask([a]), t.event("StepDispatched")
    nxt = decode("a", 99, (1, 4), 5)
    t.number = 3
    t.schedule([nxt])
    built = t.build([nxt])
    t.mask([nxt]), t.event("StepDispatched")
    t.write([a], step=2), t.event("StepCompleted", 2)
    t.sample([a], {"a": 16}, step=2)
    t.write([nxt], step=3), t.event("StepCompleted", 3)
    t.end()
    found(t, "violated", finding("row-identity", "F11", built, victim="a", expected=16, actual=99))


def test_inputs_without_tokens_are_clean() -> None:
    t, a, b = two()
    t.schedule([a, b])
    t.build([a, b])
    del t.lines[-1]["tokens"]
    t.mask([a, b]), t.event("StepDispatched"), t.write([a, b]), t.event("StepCompleted")
    t.end()
    clean(t)


def test_a_row_that_was_not_scheduled_is_blamed_on_the_build() -> None:
    """The name of a row is another request's, which nobody scheduled."""
    t, a, b = two()
    t.admit(2, "c", Q, [6])
    t.step(2, Row("c", Q, (6,)))
    c = decode("c", 25, (6, 7), 4)
    t.alloc(7, "c", 1, step=3)
    s = t.step(3, a, b, built={"requests": ["a", "c"]}, mask={"requests": ["a", "c"]})
    t.end()
    assert c.request == "c"
    report = t.judged()
    roots = [f for f in report["findings"] if f["root"]]
    assert [(f["check"], f["class"], f["culprit_seq"], f["row"]) for f in roots] == [
        ("row-identity", "F11", s.built, 1)
    ]


def test_a_scheduled_request_without_a_row_is_blamed_on_the_build() -> None:
    t, a, b = two()
    t.schedule([a, b])
    built = t.build([a])
    t.mask([a]), t.event("StepDispatched"), t.write([a]), t.event("StepCompleted")
    t.end()
    found(t, "violated", finding("row-identity", "F11", built, victim="b"))


def test_a_mask_without_the_last_live_row_is_blamed_on_the_mask() -> None:
    t, a, b = two()
    s = t.step(2, a, b, mask={"requests": ["a"], "query_lens": [1]}, sampled={"a": 16, "b": 36})
    t.end()
    found(t, "violated", finding("row-identity", "F11", s.mask, victim="b", row=1))


def test_a_token_that_the_device_writes_for_the_wrong_row_leaks_by_the_build() -> None:
    """cu-seqlens-off-by-one, as the device carries it out: b's first token is computed in a."""
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", (*R, 51), [2, 3])
    s = t.step(
        1, a, b, built={"query_lens": [5, 4]}, mask={"query_lens": [5, 4]},
        written={"requests": ["a"] * 5 + ["b"] * 4, "positions": [0, 1, 2, 3, 4, 1, 2, 3, 4]},
        sampled={"a": 15, "b": 35},
    )  # fmt: skip
    t.alloc(4, "a", 1, step=2)
    t.step(2, decode("a", 15, (1, 4), 4), decode("b", 35, (2, 3), 5), sampled={"a": 16, "b": 36})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F11", s.built)}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    assert ("b", "a") in [(f["victim"], f["source"]) for f in report["findings"]]
