"""`address` (F08): a token goes to the slot that its table and its true index say."""

from __future__ import annotations

import pytest
from hand import Row, Trace, clean, decode, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def test_a_right_mapping_is_clean_across_scattered_blocks() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, *Q, 51), [9, 2, 5]), sampled={"a": 15})
    t.step(2, decode("a", 15, (9, 2, 5), 9), sampled={"a": 16})
    t.end()
    clean(t)


def test_a_slot_off_by_one_is_blamed_on_the_build() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    s = t.step(2, decode("a", 15, (1, 2), 5), built={"slot_mapping": [10]}, sampled={"a": 16},
               written={"slots": [10]})  # fmt: skip
    t.end()
    found(
        t, "violated",
        finding("address", "F08", s.built, victim="a", row=0, slot=10, block=2, expected=9,
                actual=10),
    )  # fmt: skip


def test_the_next_slot_across_a_block_border_writes_into_anothers_block() -> None:
    """slot-consecutive: the token after slot 7 goes to slot 8, which is b's."""
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    t.step(1, a, b, sampled={"a": 15, "b": 35})
    t.alloc(3, "a", 1, step=2)
    s = t.step(2, decode("a", 15, (1, 3), 4), built={"slot_mapping": [8]}, sampled={"a": 16},
               written={"slots": [8]})  # fmt: skip
    t.alloc(4, "b", 1, step=3)
    read = t.step(3, decode("b", 35, (2, 4), 4), sampled={"b": 36})
    t.end()
    found(
        t, "contaminated",
        finding("address", "F08", s.built, source="a", slot=8, block=2, expected=12, actual=8),
        leak("F08", s.built, victim="b", source="a", block=2, slot=8, seq=read.built),
    )  # fmt: skip


def test_a_chunk_whose_offset_is_lost_is_blamed_on_the_build() -> None:
    """chunk-offset-lost: the second chunk's slots start over at the table's beginning."""
    t = Trace()
    t.admit(1, "a", P + Q, [1, 2])
    t.step(1, Row("a", P, (1, 2)))
    s = t.step(2, Row("a", Q, (1, 2), 4), built={"slot_mapping": [4, 5, 6, 7]},
               written={"slots": [4, 5, 6, 7]}, sampled={"a": 15})  # fmt: skip
    t.end()
    found(
        t, "violated",
        finding("address", "F08", s.built, victim="a", slot=4, block=1, expected=8, actual=4),
    )  # fmt: skip


def test_a_write_elsewhere_than_mapped_is_blamed_on_the_write() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    t.step(1, a, b, sampled={"a": 15, "b": 35})
    t.alloc(3, "a", 1, step=2)
    s = t.step(2, decode("a", 15, (1, 3), 4), written={"slots": [8]}, sampled={"a": 16})
    t.alloc(4, "b", 1, step=3)
    t.step(3, decode("b", 35, (2, 4), 4), sampled={"b": 36})
    t.end()
    found(
        t, "contaminated",
        finding("address", "F08", s.written, slot=8, block=2, source="a"),
        leak("F08", s.written, victim="b", source="a", block=2, slot=8),
    )  # fmt: skip


def test_minus_one_writes_nowhere_and_is_no_wrong_address() -> None:
    """The last prompt token of a full hit is computed again, without being stored."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", P, step=2)
    t.share(1, "b", 0, 2, "k1")
    t.step(2, Row("b", P[3:], (1,), 3), built={"slot_mapping": [-1]}, without=["SlotsWritten"],
           sampled={"b": 15})  # fmt: skip
    t.end()
    clean(t)


@pytest.mark.parametrize("wrong", [0, 3, 63, 64, 1000])
def test_a_slot_anywhere_else_in_or_out_of_the_pool_is_found(wrong: int) -> None:
    t = Trace()
    s = t.step(1, t.admit(1, "a", P, [1]), built={"slot_mapping": [4, 5, 6, wrong]},
               written={"slots": [4, 5, 6, wrong]}, sampled={"a": 15})  # fmt: skip
    t.end()
    found(t, "violated", finding("address", "F08", s.built, expected=7, actual=wrong, row=0))


def test_several_wrong_slots_of_a_row_are_one_finding() -> None:
    t = Trace()
    s = t.step(1, t.admit(1, "a", P, [1]), built={"slot_mapping": [5, 6, 7, 8]},
               written={"slots": [5, 6, 7, 8]}, sampled={"a": 15})  # fmt: skip
    t.end()
    found(t, "violated", finding("address", "F08", s.built, slot=5, expected=4, actual=5))


def test_the_same_wrong_formula_in_each_step_is_a_finding_each_and_one_root() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    wrong = [
        t.step(2 + n, decode("a", 15 + n, (1, 2), 5 + n), built={"slot_mapping": [12 + n]},
               written={"slots": [12 + n]}, sampled={"a": 16 + n})
        for n in range(2)
    ]  # fmt: skip
    t.end()
    found(
        t, "violated",
        finding("address", "F08", wrong[0].built, root=True),
        finding("address", "F08", wrong[1].built, root=False),
    )  # fmt: skip


def test_a_slot_that_fits_a_wrong_position_is_left_to_the_position() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    t.step(2, decode("a", 15, (1, 2), 5), built={"positions": [6], "slot_mapping": [10]},
           written={"slots": [10]}, sampled={"a": 16})  # fmt: skip
    t.end()
    assert "address" not in {f["check"] for f in t.judged()["findings"]}


def test_block_size_one_and_sixteen_work_too() -> None:
    for size in (1, 16):
        t = Trace(size=size)
        blocks = list(range(1, 1 + -(-6 // size)))
        t.step(1, t.admit(1, "a", (*P, 51), blocks), sampled={"a": 15})
        t.step(2, decode("a", 15, blocks, 5), sampled={"a": 16})
        t.end()
        clean(t)


def test_swapped_slots_of_two_rows_leak_both_ways() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    t.step(1, a, b, sampled={"a": 15, "b": 35})
    t.alloc(3, "a", 1, step=2), t.alloc(4, "b", 1)
    rows = decode("a", 15, (1, 3), 4), decode("b", 35, (2, 4), 4)
    s = t.step(2, *rows, built={"slot_mapping": [16, 12]}, written={"slots": [16, 12]})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {(f["class"], f["culprit_seq"]) for f in report["findings"]} == {("F08", s.built)}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    reads = {(f["victim"], f["source"]) for f in report["findings"] if f["check"] == "foreign-read"}
    assert reads == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_prompt_that_runs_on_into_anothers_block_leaks_in_any_row_order(first: str) -> None:
    t = Trace()
    a, b = t.admit(1, "a", P + Q, [1, 3]), t.admit(1, "b", R, [2])
    mine, theirs = [4, 5, 6, 7, 8, 9, 10, 11], [8, 9, 10, 11]
    rows, slots = ((a, b), mine + theirs) if first == "a" else ((b, a), theirs + mine)
    s = t.step(1, *rows, built={"slot_mapping": slots}, written={"slots": slots})
    t.alloc(5, "b", 1, step=2), t.alloc(6, "a", 2)
    t.sample(rows, {"a": 15, "b": 35}, step=1)
    t.step(2, decode("b", 35, (2, 5), 4))
    t.end()
    report = t.judged()
    roots = [f for f in report["findings"] if f["root"]]
    assert [(f["check"], f["class"], f["culprit_seq"]) for f in roots] == [
        ("address", "F08", s.built)
    ]
    reads = [f for f in report["findings"] if f["check"] == "foreign-read"]
    assert {(f["victim"], f["source"], f["class"]) for f in reads} == {("b", "a", "F08")}


def test_a_slot_written_twice_instead_of_the_next_is_the_writes() -> None:
    """The mapping was right; token 3 went where token 2 is."""
    t = Trace()
    s = t.step(1, t.admit(1, "a", P, [1]), written={"slots": [4, 5, 6, 6]}, sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 16})
    t.end()
    report = t.judged()
    roots = [f for f in report["findings"] if f["root"]]
    assert [(f["check"], f["class"], f["culprit_seq"], f["slot"]) for f in roots] == [
        ("address", "F08", s.written, 6)
    ]
    assert {f["class"] for f in report["findings"]} == {"F08"}


def test_positions_that_are_logged_wrongly_are_no_wrong_address() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), written={"positions": [1, 0, 2, 3]}, sampled={"a": 15})
    t.end()
    assert "address" not in {f["check"] for f in t.judged()["findings"]}
