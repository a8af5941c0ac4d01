"""`dangling-table` (F07): a table lists what its request holds, and ends where it ends."""

from __future__ import annotations

from hand import PAD, Row, Trace, clean, decode, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def one_done(**config: object) -> Trace:
    t = Trace(**config)  # type: ignore[arg-type]
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.number = 2
    return t


def preempted() -> tuple[Trace, int]:
    """Request a had blocks 1 and 2 and lost them; b was handed block 2 since; the release of 2."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    t.event("RequestPreempted", 2, request="a")
    t.release(1, "a", 0, 0)
    t.free(1)
    released = t.release(2, "a", 1, 0)
    t.free(2)
    t.step(2, t.admit(2, "b", R, [2]), sampled={"b": 35})
    t.number = 3
    return t, released


def test_a_preempted_request_that_resumes_with_a_new_table_is_clean() -> None:
    t, _ = preempted()
    for index, block in enumerate((5, 6, 7)):
        t.alloc(block, "a", index)
    t.alloc(3, "b", 1)
    t.step(
        3, Row("a", (*P, *Q, 25), (5, 6, 7)), decode("b", 35, (2, 3), 4),
        sampled={"a": 26, "b": 36},
    )  # fmt: skip
    t.end()
    clean(t)


def test_a_kept_entry_is_blamed_on_the_release_after_which_the_table_kept_it() -> None:
    t, released = preempted()
    t.alloc(5, "a", 0)
    t.alloc(7, "a", 2)
    t.alloc(3, "b", 1)
    read = t.step(
        3, Row("a", (*P, *Q, 25), (5, 2, 7)), decode("b", 35, (2, 3), 4),
        sampled={"a": 26, "b": 36},
    )  # fmt: skip
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", released, block=2, victim="a", source="b", row=0,
                seq=read.built),
        leak("F07", released, victim="b", source="a", block=2),
    )  # fmt: skip


def test_a_kept_entry_that_is_only_read_leaks_the_new_owners_data() -> None:
    t = one_done()
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.step(2, t.admit(2, "b", R, [1]), sampled={"b": 35})
    t.alloc(3, "a", 1, step=3)
    read = t.step(3, decode("a", 15, (1, 3), 4), sampled={"a": 16})
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", released, block=1, victim="a", source="b"),
        leak("F07", released, victim="a", source="b", block=1, slot=4, seq=read.built),
    )  # fmt: skip


def test_a_kept_entry_whose_block_is_still_free_violates() -> None:
    t = one_done()
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.alloc(3, "a", 1)
    t.step(2, decode("a", 15, (1, 3), 4), sampled={"a": 16})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", released, block=1, victim="a"))


def test_several_kept_entries_of_one_preemption_are_one_finding() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    t.event("RequestPreempted", 2, request="a")
    first = t.release(1, "a", 0, 0)
    t.free(1)
    t.release(2, "a", 1, 0)
    t.free(2)
    t.alloc(7, "a", 2)
    t.step(2, Row("a", (*P, *Q, 25), (1, 2, 7)), sampled={"a": 26})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", first, block=1, victim="a"))


def test_a_block_never_held_is_blamed_on_the_build_that_lists_it_first() -> None:
    t = one_done()
    t.alloc(2, "a", 1)
    t.step(2, t.admit(2, "b", R, [3]), sampled={"b": 35})
    first = t.step(3, decode("a", 15, (1, 3), 4), sampled={"a": 16})
    t.alloc(5, "b", 1, step=4)
    later = t.step(
        4, decode("a", 16, (1, 3), 5), decode("b", 35, (3, 5), 4), sampled={"a": 17, "b": 36}
    )
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", first.built, block=3, victim="a", source="b"),
        leak("F07", first.built, victim="b", source="a", block=3, seq=later.built),
    )  # fmt: skip


def test_an_entry_of_an_earlier_generation_is_blamed_on_its_release() -> None:
    """The request holds the block again, but at another index."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    t.event("RequestPreempted", 2, request="a")
    first = t.release(1, "a", 0, 0)
    t.free(1)
    t.release(2, "a", 1, 0)
    t.free(2)
    t.alloc(2, "a", 0)
    t.alloc(5, "a", 1)
    t.alloc(6, "a", 2)
    t.step(2, Row("a", (*P, *Q, 25), (1, 5, 6)), sampled={"a": 26})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", first, block=1, victim="a"))


def test_a_hole_inside_the_length_is_blamed_on_the_build() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    t.alloc(3, "a", 2, step=2)
    s = t.step(2, decode("a", 25, (1, -1, 3), 8), sampled={"a": 26})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", s.built, victim="a", row=0))


def test_a_table_that_is_too_short_is_blamed_on_the_build() -> None:
    t = one_done()
    t.alloc(2, "a", 1)
    row = decode("a", 15, (1, 2), 4)
    s = t.step(2, row, built={"block_tables": [[1]]})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", s.built, victim="a", row=0))


def test_a_length_beyond_the_blocks_held_is_a_table_that_ends_wrongly() -> None:
    """seq_len + 1 at a block border: the row reads one slot of whoever has the next block."""
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    t.step(1, b, sampled={"b": 35})
    s = t.step(2, a, built={"seq_lens": [5], "block_tables": [[1, 2]]}, sampled={"a": 15})
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", s.built, victim="a", block=2, expected=4, actual=5),
        leak("F07", s.built, victim="a", source="b", block=2, slot=8),
    )  # fmt: skip


def test_a_length_beyond_the_blocks_held_without_an_entry_there_violates() -> None:
    t = Trace()
    s = t.step(1, t.admit(1, "a", P, [1]), built={"seq_lens": [5]}, sampled={"a": 15})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", s.built, victim="a", actual=5))


def test_an_entry_past_the_end_that_is_not_held_is_blamed_on_the_build() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    t.step(1, b, sampled={"b": 35})
    s = t.step(2, a, built={"block_tables": [[1, 2]]}, sampled={"a": 15})
    t.end()
    found(t, "violated", finding("dangling-table", "F07", s.built, victim="a", block=2))


def test_entries_past_the_end_may_be_holes_sentinels_or_held() -> None:
    t = Trace(sentinels=[0])
    a = t.admit(1, "a", P, [1, 2])
    t.step(1, a, built={"block_tables": [[1, 2, -1, 0, -1]]}, sampled={"a": 15})
    t.step(2, decode("a", 15, (1, 2, 0, 0), 4), sampled={"a": 16})
    t.end()
    clean(t)


def test_entries_behind_the_window_may_be_holes_sentinels_or_still_held() -> None:
    for behind in (-1, 0, 1):
        t = Trace(sentinels=[0], windows=[4])
        t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25}, window=4)
        t.number = 2
        t.alloc(3, "a", 2)
        if behind != 1:
            t.release(1, "a", 0, 0)
            t.free(1)
        t.step(2, decode("a", 25, (behind, 2, 3), 8), sampled={"a": 26}, window=4)
        t.end()
        clean(t)


def test_a_released_block_wholly_outside_the_window_may_not_stay_listed() -> None:
    t = Trace(windows=[4])
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25}, window=4)
    t.number = 2
    t.alloc(3, "a", 2)
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.step(2, decode("a", 25, (1, 2, 3), 8), sampled={"a": 26}, window=4)
    t.end()
    found(t, "violated", finding("dangling-table", "F07", released, block=1, victim="a"))


def test_a_block_that_the_window_still_reaches_must_be_held() -> None:
    """Query 8 with window 6 sees keys 3 to 8: block 1 is partly inside."""
    t = Trace(windows=[6])
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25}, window=6)
    t.number = 2
    t.alloc(3, "a", 2)
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.step(2, t.admit(2, "b", R, [1]), sampled={"b": 35}, window=6)
    t.number = 3
    t.step(3, decode("a", 25, (1, 2, 3), 8), sampled={"a": 26}, window=6)
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", released, block=1, victim="a"),
        leak("F07", released, victim="a", source="b", block=1, slot=7),
    )  # fmt: skip


def test_pads_may_carry_any_table_of_holes() -> None:
    t = Trace(sentinels=[0])
    a = t.admit(1, "a", P, [1])
    t.step(1, a, PAD, built={"block_tables": [[1, -1], [0, 0]]}, sampled={"a": 15})
    t.end()
    clean(t)


def test_the_same_request_and_entry_kept_over_many_steps_is_one_finding() -> None:
    t = one_done()
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.step(2, t.admit(2, "b", R, [1]), sampled={"b": 35})
    t.alloc(3, "a", 1, step=3)
    for n in range(3):
        t.step(3 + n, decode("a", 15 + n, (1, 3), 4 + n), sampled={"a": 16 + n})
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", released, block=1, victim="a"),
        leak("F07", released, victim="a", source="b", position=f"3:{released + 13}"),
    )  # fmt: skip


def test_two_preemptions_that_keep_their_tables_are_two_findings_and_one_root() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2]), sampled={"a": 15, "b": 25})
    t.event("RequestPreempted", 2, request="a")
    first = t.release(1, "a", 0, 0)
    t.free(1)
    t.alloc(3, "a", 1)
    t.step(2, Row("a", (*P, 15), (1, 3)), sampled={"a": 16})
    t.event("RequestPreempted", 3, request="b")
    second = t.release(2, "b", 0, 0)
    t.free(2)
    t.alloc(4, "b", 1)
    t.step(3, Row("b", (*Q, 25), (2, 4)), sampled={"b": 26})
    t.end()
    found(
        t, "violated",
        finding("dangling-table", "F07", first, victim="a", root=True),
        finding("dangling-table", "F07", second, victim="b", root=False),
    )  # fmt: skip
