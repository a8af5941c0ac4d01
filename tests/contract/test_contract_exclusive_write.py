"""`exclusive-write` (F19): nobody writes into a block that others hold too."""

from __future__ import annotations

from hand import Row, Trace, clean, decode, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def forked(taken: int = 6) -> Trace:
    """a has computed six tokens in blocks 1 and 2 and sampled 15; b is its fork."""
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51, 52), [1, 2]), sampled={"a": 15})
    t.add("b", (*P, 51, 52), step=2, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=taken)
    t.share(1, "b", 0, 2, None)
    return t


def both(t: Trace, number: int, table: tuple[int, int], token: int = 16, **more: object):
    """a and b decode their seventh token, b in that table; b's own token differs from a's."""
    rows = decode("a", 15, (1, 2), 6), decode("b", token, table, 6)
    return t.step(number, *rows, sampled={"a": 17, "b": 18}, **more)  # type: ignore[arg-type]


def own_token(t: Trace, token: int = 16) -> None:
    """b's first own token, drawn from the parent's row of step 1."""
    t.event("RequestRevised", request="b", tokens_kept=6, tokens=[token])


def test_a_fork_that_copies_before_it_writes_is_clean() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    t.alloc(3, "b", 1)
    t.copy(2, 3, 2)
    t.release(2, "b", 1, 1)
    both(t, 2, (1, 3))
    t.end()
    clean(t)


def test_a_fork_that_copies_at_once_is_clean() -> None:
    t = forked()
    own_token(t)
    t.alloc(3, "b", 1)
    t.copy(2, 3, 2)
    both(t, 2, (1, 3))
    t.end()
    clean(t)


def test_a_write_into_a_shared_block_is_blamed_on_the_write() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    s = t.step(2, decode("a", 15, (1, 2), 6), sampled={"a": 17})
    t.end()
    found(
        t, "violated",
        finding("exclusive-write", "F19", s.written, block=2, slot=10, victim="b", source="a"),
    )  # fmt: skip


def test_a_write_into_a_shared_block_leaks_once_the_other_reads_it() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    s = t.step(2, decode("a", 15, (1, 2), 6), sampled={"a": 17})
    t.step(3, decode("a", 17, (1, 2), 7), sampled={"a": 19})
    t.step(4, decode("b", 16, (1, 2), 6), sampled={"b": 18})
    t.end()
    report = t.judged()
    roots = [f for f in report["findings"] if f["root"]]
    assert [(f["check"], f["class"], f["culprit_seq"]) for f in roots] == [
        ("exclusive-write", "F19", s.written)
    ]


def test_no_copy_on_write_leaks_by_the_first_write_into_the_shared_block() -> None:
    """a and b write their own seventh tokens into one slot, one step after the other."""
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    s = t.step(2, decode("a", 15, (1, 2), 6), sampled={"a": 17})
    t.step(3, decode("b", 16, (1, 2), 6), sampled={"b": 18})
    read = t.step(4, decode("a", 17, (1, 2), 7), sampled={"a": 19})
    t.end()
    found(
        t, "contaminated",
        finding("exclusive-write", "F19", s.written, block=2, slot=10),
        leak("F19", s.written, victim="a", source="b", block=2, slot=10, seq=read.built),
    )  # fmt: skip


def test_two_writers_of_one_slot_in_one_step_are_blamed_on_the_write() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    s = both(t, 2, (1, 2))
    t.end()
    report = t.judged()
    roots = [f for f in report["findings"] if f["root"]]
    assert [(f["check"], f["class"], f["culprit_seq"]) for f in roots] == [
        ("exclusive-write", "F19", s.written)
    ]
    assert report["verdict"] == "contaminated"


def test_the_first_write_of_a_keyed_slot_is_exempt() -> None:
    """Two requests of one prompt admitted in one step: the sharer reads what is written now."""
    t = Trace(publish="scheduled")
    a = t.admit(1, "a", (*P, 51), [1, 2])
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61))
    t.share(1, "b", 0, 2, "k1")
    t.alloc(3, "b", 1)
    t.step(1, a, Row("b", (61,), (1, 3), 4), sampled={"a": 15, "b": 16})
    t.end()
    clean(t)


def test_writing_a_keyed_slot_a_second_time_is_not_exempt() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1")
    t.alloc(3, "b", 1)
    s = t.step(2, Row("b", (*P, 61), (1, 3)), sampled={"b": 16})
    t.end()
    found(
        t, "violated", finding("exclusive-write", "F19", s.written, block=1, source="b", victim="a")
    )


def test_a_first_write_of_other_tokens_than_keyed_is_not_exempt() -> None:
    """a registers P while scheduling and then computes something else into the block."""
    t = Trace(publish="scheduled")
    a = t.admit(1, "a", (*R, 51), [1, 2])
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61))
    t.share(1, "b", 0, 2, "k1")
    t.alloc(3, "b", 1)
    s = t.step(1, a, Row("b", (61,), (1, 3), 4), sampled={"a": 15, "b": 16})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert [f["root"] for f in report["findings"]].count(True) == 1
    assert {f["class"] for f in report["findings"]} <= {"F19", "F01"}
    assert s.written is not None


def test_a_late_copy_is_blamed_on_the_copy() -> None:
    """The copy comes after the step that reads its destination."""
    t = forked()
    own_token(t)
    t.alloc(3, "b", 1)
    both(t, 2, (1, 3))
    copied = t.copy(2, 3, 2)
    t.end()
    found(t, "violated", finding("exclusive-write", "F19", copied, block=3, victim="b"))


def test_a_copy_into_a_block_with_someones_leftovers_that_comes_late_leaks() -> None:
    t = Trace()
    t.step(1, t.admit(1, "x", R, [3]), sampled={"x": 35})
    t.leave("x", [3])
    t.step(2, t.admit(2, "a", (*P, 51, 52), [1, 2]), sampled={"a": 15})
    t.add("b", (*P, 51, 52), step=3, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=6)
    t.share(1, "b", 0, 2, None), t.share(2, "b", 1, 2, None)
    own_token(t)
    t.alloc(3, "b", 1)
    t.release(2, "b", 1, 1)
    both(t, 3, (1, 3))
    copied = t.copy(2, 3, 2)
    t.end()
    found(
        t, "contaminated",
        finding("exclusive-write", "F19", copied, block=3, victim="b"),
        leak("F19", copied, victim="b", source="x", block=3, slot=12),
    )  # fmt: skip


def test_a_partial_copy_is_blamed_on_the_copy() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    t.alloc(3, "b", 1)
    copied = t.copy(2, 3, 1)
    t.release(2, "b", 1, 1)
    both(t, 2, (1, 3))
    t.end()
    found(t, "violated", finding("exclusive-write", "F19", copied, block=3, slot=13, victim="b"))


def test_a_missing_copy_is_blamed_on_the_allocation_that_replaced_the_entry() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    allocated = t.alloc(3, "b", 1)
    t.release(2, "b", 1, 1)
    both(t, 2, (1, 3))
    t.end()
    found(t, "violated", finding("exclusive-write", "F19", allocated, block=3, victim="b"))


def test_a_copy_of_the_wrong_block_is_blamed_on_the_copy() -> None:
    t = Trace()
    t.step(1, t.admit(1, "x", R, [5]), sampled={"x": 35})
    t.step(2, t.admit(2, "a", (*P, 51, 52), [1, 2]), sampled={"a": 15})
    t.add("b", (*P, 51, 52), step=3, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=6)
    t.share(1, "b", 0, 2, None), t.share(2, "b", 1, 2, None)
    own_token(t)
    t.alloc(3, "b", 1)
    copied = t.copy(5, 3, 2)
    t.release(2, "b", 1, 1)
    both(t, 3, (1, 3))
    t.end()
    found(
        t, "contaminated",
        finding("exclusive-write", "F19", copied, block=3, victim="b", source="x"),
        leak("F19", copied, victim="b", source="x", block=3),
    )  # fmt: skip


def test_a_copy_of_more_slots_than_needed_is_overwritten_and_clean() -> None:
    t = forked()
    t.share(2, "b", 1, 2, None)
    own_token(t)
    t.alloc(3, "b", 1)
    t.copy(2, 3, 4)
    t.release(2, "b", 1, 1)
    both(t, 2, (1, 3))
    t.end()
    clean(t)


def test_many_may_hold_a_full_block_that_nobody_writes() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    rows = []
    t.number = 2
    for n, name in enumerate("bcd"):
        t.add(name, (*P, 61 + n))
        t.share(1, name, 0, 2 + n, "k1")
        t.alloc(3 + n, name, 1)
        rows.append(Row(name, (61 + n,), (1, 3 + n), 4))
    t.step(2, *rows, sampled={"b": 71, "c": 72, "d": 73})
    t.end()
    clean(t)


def test_sentinels_may_be_written_by_anyone() -> None:
    t = Trace(sentinels=[0])
    a = t.admit(1, "a", P, [1])
    pads = Row(None, (0,)), Row(None, (0,))
    t.step(1, a, *pads, built={"slot_mapping": [4, 5, 6, 7, 0, 0]}, sampled={"a": 15})
    t.event(
        "SlotsWritten",
        write="pad",
        requests=[None, None],
        positions=[0, 0],
        tokens=[0, 0],
        slots=[0, 0],
    )
    t.end()
    clean(t)
