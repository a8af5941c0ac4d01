"""`unwritten-read` (F13): what a row reads was written in the block's present generation."""

from __future__ import annotations

from hand import Row, Trace, clean, decode, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def leftovers() -> Trace:
    """x computed R in block 2 and left; block 2 holds what it wrote."""
    t = Trace()
    t.step(1, t.admit(1, "x", R, [2]), sampled={"x": 35})
    t.leave("x", [2])
    return t


def test_a_reused_block_that_is_written_before_it_is_read_is_clean() -> None:
    t = leftovers()
    t.step(2, t.admit(2, "a", P, [2]), sampled={"a": 15})
    t.end()
    clean(t)


def test_a_chunk_that_was_skipped_leaves_the_earlier_owners_data() -> None:
    """Tokens 4 to 7 are counted as computed, and never were."""
    t = leftovers()
    t.admit(2, "a", (*P, *Q, 51), [1, 2, 3])
    t.step(2, Row("a", P, (1, 2, 3)))
    s = t.step(3, Row("a", (51,), (1, 2, 3), 8), sampled={"a": 15})
    t.end()
    found(
        t, "contaminated",
        finding("unwritten-read", "F13", s.built, victim="a", block=2, slot=8, row=0),
        leak("F13", s.built, victim="a", source="x", block=2, slot=8),
    )  # fmt: skip


def test_a_skipped_chunk_in_a_fresh_block_violates() -> None:
    t = Trace()
    t.admit(1, "a", (*P, *Q, 51), [1, 2, 3])
    t.step(1, Row("a", P, (1, 2, 3)))
    s = t.step(2, Row("a", (51,), (1, 2, 3), 8), sampled={"a": 15})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", s.built, victim="a", block=2, slot=8))


def test_one_slot_that_was_written_nowhere_is_found_when_read() -> None:
    t = leftovers()
    t.admit(2, "a", (*P, 51, 52), [1, 2])
    t.step(2, Row("a", (*P, 51, 52), (1, 2)), built={"slot_mapping": [4, 5, 6, 7, -1, 9]},
           written={"slots": [4, 5, 6, 7, -1, 9]}, sampled={"a": 15})  # fmt: skip
    t.end()
    first = t.lines.index(next(x for x in t.lines if x["kind"] == "InputsBuilt" and x["step"] == 2))
    found(
        t, "contaminated",
        finding("unwritten-read", "F13", first, victim="a", block=2, slot=8),
        leak("F13", first, victim="a", source="x", block=2, slot=8),
    )  # fmt: skip


def test_a_block_handed_out_again_to_the_same_request_must_be_written_again() -> None:
    """Preempted and resumed into the same block, and taken for computed."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.event("RequestPreempted", 2, request="a")
    t.release(1, "a", 0, 0)
    t.free(1)
    t.alloc(1, "a", 0), t.alloc(2, "a", 1)
    s = t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", s.built, victim="a", block=1, slot=4))


def test_a_length_one_too_long_inside_the_blocks_held_is_unwritten() -> None:
    t = leftovers()
    a = t.admit(2, "a", (*P, 51), [1, 2])
    s = t.step(2, a, built={"seq_lens": [6]}, sampled={"a": 15})
    t.end()
    found(
        t, "contaminated",
        finding("unwritten-read", "F13", s.built, victim="a", row=0, expected=5, actual=6,
                slot=9, block=2),
        leak("F13", s.built, victim="a", source="x", block=2, slot=9),
    )  # fmt: skip


def test_a_length_one_too_long_in_a_fresh_block_violates() -> None:
    t = Trace()
    s = t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), built={"seq_lens": [6]}, sampled={"a": 15})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", s.built, expected=5, actual=6))


def test_a_length_too_short_reads_too_few_keys() -> None:
    t = Trace()
    s = t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), built={"seq_lens": [4]}, sampled={"a": 15})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", s.built, expected=5, actual=4))


def test_a_long_read_into_a_longer_table_shows_what_was_left() -> None:
    """reuse-no-scrub-long-read: the length runs over a whole held, unwritten block."""
    t = leftovers()
    a = t.admit(2, "a", P, [1, 2])
    s = t.step(2, a, built={"seq_lens": [8]}, sampled={"a": 15})
    t.end()
    found(
        t, "contaminated",
        finding("unwritten-read", "F13", s.built, victim="a", expected=4, actual=8),
        leak("F13", s.built, victim="a", source="x", block=2),
    )  # fmt: skip


def test_a_scrubbed_block_is_unwritten() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.event("BlockScrubbed", 2, block=1, how="zero")
    t.alloc(2, "a", 1)
    s = t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", s.built, victim="a", block=1, slot=4))


def test_a_pool_epoch_unwrites_everything() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.event("EpochChanged", 2, epoch="e2", what="pool")
    t.alloc(2, "a", 1)
    s = t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", s.built, victim="a", block=1))


def test_the_same_unwritten_block_read_in_every_step_is_one_finding() -> None:
    t = Trace()
    t.admit(1, "a", (*P, *Q, 51), [1, 2, 3])
    t.step(1, Row("a", P, (1, 2, 3)))
    first = t.step(2, Row("a", (51,), (1, 2, 3), 8), sampled={"a": 15})
    t.step(3, decode("a", 15, (1, 2, 3), 9), sampled={"a": 16})
    t.step(4, decode("a", 16, (1, 2, 3), 10), sampled={"a": 17})
    t.end()
    found(t, "violated", finding("unwritten-read", "F13", first.built, victim="a", block=2))


def test_slots_behind_the_window_need_not_be_written() -> None:
    t = Trace(windows=[4])
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), window=4, sampled={"a": 15})
    t.event("BlockScrubbed", 2, block=1, how="zero")
    t.alloc(3, "a", 2)
    t.step(2, decode("a", 15, (1, 2, 3), 8), window=4, sampled={"a": 16})
    t.end()
    clean(t)


def test_a_group_whose_slots_were_never_written_is_found_for_that_group() -> None:
    t = Trace(groups=2)
    a = t.admit(1, "a", P, [1])
    t.alloc(7, "a", 0, group=1)
    in_one = Row("a", P, (7,))
    t.schedule([a]), t.build([a]), t.build([in_one], group=1)
    t.event("StepDispatched")
    t.write([a])
    t.event("StepCompleted")
    t.sample([a], {"a": 15})
    t.alloc(2, "a", 1, step=2), t.alloc(8, "a", 1, group=1)
    zero, one = decode("a", 15, (1, 2), 4), decode("a", 15, (7, 8), 4)
    t.schedule([zero]), t.build([zero])
    built = t.build([one], group=1)
    t.event("StepDispatched")
    t.write([zero]), t.write([one], group=1)
    t.event("StepCompleted")
    t.end()
    report = t.judged()
    roots = [f for f in report["findings"] if f["root"]]
    assert [(f["check"], f["class"], f["block"], f["culprit_seq"]) for f in roots] == [
        ("unwritten-read", "F13", 7, built)
    ]


def test_both_groups_written_are_clean_with_their_own_block_numbers() -> None:
    t = Trace(groups=2)
    a = t.admit(1, "a", P, [1])
    t.alloc(1, "a", 0, group=1)
    t.schedule([a]), t.build([a], group=0), t.build([a], group=1)
    t.event("StepDispatched")
    t.write([a]), t.write([a], group=1)
    t.event("StepCompleted")
    t.sample([a], {"a": 15})
    t.end()
    clean(t)
