"""`ref-count` (F06): a count is the number of holders; freed once; what is zero is freed."""

from __future__ import annotations

from hand import Row, Trace, clean, decode, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def one_done() -> Trace:
    """Request a has computed P in block 1, and is about to leave."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    return t


def two_sharing(count: int = 2) -> Trace:
    """Block 1 holds P, was registered by a, and is shared by b, who computes Q in block 2."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.number = 2
    t.add("b", P + Q)
    t.lookup("b", ["k1", "k2"], [1])
    t.share(1, "b", 0, count, "k1")
    t.alloc(2, "b", 1)
    t.alloc(3, "a", 1)
    return t


def step_two(t: Trace) -> None:
    from hand import Row

    t.step(2, Row("b", Q, (1, 2), 4), decode("a", 15, (1, 3), 4), sampled={"a": 16, "b": 25})


def test_a_request_that_comes_and_goes_is_clean() -> None:
    t = one_done()
    t.leave("a", [1])
    t.end()
    clean(t)


def test_two_requests_that_share_and_leave_one_by_one_are_clean() -> None:
    t = two_sharing()
    step_two(t)
    t.finish("a")
    t.release(1, "a", 0, 1)
    t.release(3, "a", 1, 0)
    t.free(3)
    t.finish("b")
    t.release(1, "b", 0, 0)
    t.free(1, cached=True)
    t.release(2, "b", 1, 0)
    t.free(2)
    t.end()
    clean(t)


def test_a_double_release_is_blamed_on_the_second_release() -> None:
    t = one_done()
    t.leave("a", [1])
    second = t.release(1, "a", 0, -1)
    t.end()
    found(t, "violated", finding("ref-count", "F06", second, block=1, seq=second, actual=-1))


def test_a_double_release_without_index_is_blamed_on_the_second_release() -> None:
    t = one_done()
    t.finish("a")
    t.release(1, "a", None, 0)
    t.free(1)
    second = t.release(1, "a", None, -1)
    t.end()
    found(t, "violated", finding("ref-count", "F06", second, block=1, seq=second))


def test_a_double_release_while_another_holds_is_one_finding() -> None:
    """The second release takes b's reference away: the block is freed under b's feet."""
    t = two_sharing()
    step_two(t)
    t.finish("a")
    t.release(1, "a", 0, 1)
    second = t.release(1, "a", 0, 0)
    t.free(1, cached=True)
    t.release(3, "a", 1, 0)
    t.free(3)
    t.finish("b")
    t.release(1, "b", 0, -1)
    t.release(2, "b", 1, 0)
    t.free(2)
    t.end()
    found(t, "violated", finding("ref-count", "F06", second, block=1, seq=second))


def test_a_block_freed_twice_and_handed_to_two_requests_leaks_by_the_second_free() -> None:
    t = one_done()
    t.leave("a", [1])
    again = t.free(1)
    b = t.admit(2, "b", Q, [1])
    t.step(2, b, sampled={"b": 25})
    c = t.admit(3, "c", R, [1])
    t.alloc(4, "b", 1)
    read = t.step(3, c, decode("b", 25, (1, 4), 4), sampled={"b": 26})
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", again, block=1, seq=again),
        leak("F06", again, victim="b", source="c", block=1, slot=4, row=1, seq=read.built),
    )  # fmt: skip


def test_a_double_release_that_hands_the_block_out_twice_leaks_by_the_second_release() -> None:
    t = one_done()
    t.leave("a", [1])
    second = t.release(1, "a", 0, -1)
    t.free(1)
    b = t.admit(2, "b", Q, [1])
    c = t.admit(2, "c", R, [1])
    t.step(2, b, c, sampled={"b": 25, "c": 35})
    t.alloc(4, "b", 1, step=3)
    t.step(3, decode("b", 25, (1, 4), 4), sampled={"b": 26})
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", second, block=1),
        leak("F06", second, victim="b", source="c", block=1),
        leak("F06", second, victim="c", source="b", block=1),
    )  # fmt: skip


def test_a_share_that_acquires_nothing_is_blamed_on_the_share() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.number = 2
    t.add("b", P + Q)
    shared = t.share(1, "b", 0, 1, "k1")
    t.alloc(2, "b", 1)
    t.alloc(3, "a", 1)
    step_two(t)
    t.finish("a")
    t.release(1, "a", 0, 0)
    t.free(1)
    t.unregister(1, "k1", "reused")
    t.release(3, "a", 1, 0)
    t.free(3)
    c = t.admit(3, "c", R, [1])
    t.alloc(5, "b", 2)
    t.step(3, c, decode("b", 25, (1, 2, 5), 8), sampled={"c": 35, "b": 26})
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", shared, block=1, victim="b", expected=2, actual=1),
        leak("F06", shared, victim="b", source="c", block=1, slot=4),
    )  # fmt: skip


def test_a_share_that_counts_two_is_blamed_on_the_share() -> None:
    t = two_sharing(count=3)
    shared = next(i for i, line in enumerate(t.lines) if line["kind"] == "BlockShared")
    step_two(t)
    t.end()
    found(t, "violated", finding("ref-count", "F06", shared, block=1, expected=2, actual=3))


def test_what_a_finished_request_keeps_is_blamed_on_its_finish_once() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    finished = t.finish("a")
    t.step(2, t.admit(2, "b", R, [3]), sampled={"b": 35})
    t.end()
    found(t, "violated", finding("ref-count", "F06", finished, block=1, victim="a"))


def test_what_a_finished_request_keeps_is_seen_at_the_end_of_the_run_too() -> None:
    t = one_done()
    finished = t.finish("a")
    ended = t.end()
    found(t, "violated", finding("ref-count", "F06", finished, seq=ended, block=1))


def test_each_request_that_keeps_its_blocks_is_a_finding_and_the_first_the_root() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2]), sampled={"a": 15, "b": 25})
    first, second = t.finish("a"), t.finish("b")
    t.end()
    found(
        t, "violated",
        finding("ref-count", "F06", first, block=1, root=True),
        finding("ref-count", "F06", second, block=2, root=False),
    )  # fmt: skip


def test_a_finished_request_whose_step_is_in_flight_may_still_hold() -> None:
    t = one_done()
    t.number = 2
    t.alloc(2, "a", 1)
    row = decode("a", 15, (1, 2), 4)
    t.schedule([row]), t.build([row]), t.mask([row]), t.event("StepDispatched")
    t.event("AbortRequested", 3, request="a")
    t.finish("a", "aborted")
    b = t.admit(3, "b", Q, [3])
    t.schedule([b]), t.build([b]), t.mask([b]), t.event("StepDispatched")
    t.write([row], step=2)
    t.event("StepCompleted", 2)
    t.release(1, "a", 0, 0, step=3)
    t.free(1)
    t.release(2, "a", 1, 0)
    t.free(2)
    t.write([b])
    t.event("StepCompleted", 3)
    t.end()
    clean(t)


def test_a_finished_request_that_a_transfer_reads_may_still_hold() -> None:
    t = one_done()
    t.register(1, "k1", "a", P)
    t.event("TransferStarted", transfer="t1", direction="store", blocks=[1], keys=["k1"])
    t.finish("a")
    t.step(2, t.admit(2, "b", Q, [3]), sampled={"b": 25})
    t.event("TransferFinished", transfer="t1", status="ok")
    t.release(1, "a", 0, 0)
    t.free(1, cached=True)
    t.step(3, t.admit(3, "c", R, [4]), sampled={"c": 35})
    t.end()
    clean(t)


def test_a_block_freed_while_another_holds_it_is_blamed_on_the_free() -> None:
    t = two_sharing()
    step_two(t)
    t.finish("a")
    t.release(1, "a", 0, 1)
    freed = t.free(1)
    t.release(3, "a", 1, 0)
    t.free(3)
    t.end()
    found(t, "violated", finding("ref-count", "F06", freed, block=1, seq=freed, victim="b"))


def test_blocks_freed_while_held_in_one_go_are_one_finding() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    t.register(1, "k1", "a", P), t.register(2, "k2", "a", Q, "k1")
    t.number = 2
    t.add("b", P + Q + R)
    t.share(1, "b", 0, 2, "k1"), t.share(2, "b", 1, 2, "k2")
    t.alloc(3, "b", 2)
    from hand import Row

    t.step(2, Row("b", R, (1, 2, 3), 8), sampled={"b": 35})
    t.finish("a")
    t.release(1, "a", 0, 1)
    freed = t.free(1)
    t.release(2, "a", 1, 1)
    t.free(2)
    t.end()
    found(t, "violated", finding("ref-count", "F06", freed, block=1))


def test_a_count_of_zero_that_is_not_freed_before_the_next_allocation_is_the_releases() -> None:
    t = one_done()
    t.finish("a")
    released = t.release(1, "a", 0, 0)
    b = t.admit(2, "b", Q, [1])
    t.step(2, b, sampled={"b": 25})
    t.end()
    found(t, "violated", finding("ref-count", "F06", released, block=1))


def test_a_count_of_zero_that_is_not_freed_before_the_end_is_the_releases() -> None:
    t = one_done()
    t.finish("a")
    released = t.release(1, "a", 0, 0)
    ended = t.end()
    found(t, "violated", finding("ref-count", "F06", released, seq=ended, block=1))


def test_a_count_of_zero_that_is_not_freed_before_the_next_share_is_the_releases() -> None:
    t = one_done()
    t.register(1, "k1", "a", P)
    t.finish("a")
    released = t.release(1, "a", 0, 0)
    t.add("b", P + Q, step=2)
    t.share(1, "b", 0, 1, "k1")
    t.alloc(2, "b", 1)
    from hand import Row

    t.step(2, Row("b", Q, (1, 2), 4), sampled={"b": 25})
    t.end()
    found(t, "violated", finding("ref-count", "F06", released, block=1))


def test_a_release_that_counts_wrongly_is_to_blame() -> None:
    for wrong in (0, 2):
        t = two_sharing()
        step_two(t)
        t.finish("a")
        released = t.release(1, "a", 0, wrong)
        t.release(3, "a", 1, 0)
        t.free(3)
        t.end()
        found(
            t, "violated",
            finding("ref-count", "F06", released, block=1, expected=1, actual=wrong),
        )  # fmt: skip


def test_a_release_that_counts_to_zero_too_early_leaks_through_the_free_that_follows() -> None:
    t = two_sharing()
    step_two(t)
    t.finish("a")
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.unregister(1, "k1", "reused")
    t.release(3, "a", 1, 0)
    t.free(3)
    c = t.admit(3, "c", R, [1])
    t.alloc(5, "b", 2)
    t.step(3, c, decode("b", 25, (1, 2, 5), 8), sampled={"c": 35, "b": 26})
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", released, block=1),
        leak("F06", released, victim="b", source="c", block=1),
    )  # fmt: skip


def test_two_that_pop_one_block_are_blamed_on_the_second_allocation() -> None:
    t = one_done()
    t.alloc(3, "a", 1, step=2)
    t.add("b", Q)
    second = t.alloc(1, "b", 0)
    t.step(2, Row("b", Q, (1,)), decode("a", 15, (1, 3), 4), sampled={"a": 16, "b": 25})
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", second, block=1, victim="a"),
        leak("F06", second, victim="a", source="b", block=1, slot=4),
    )  # fmt: skip


def test_a_release_by_one_who_never_held_is_to_blame() -> None:
    t = one_done()
    t.step(2, t.admit(2, "b", Q, [2]), sampled={"b": 25})
    released = t.release(1, "b", 1, 0)
    t.end()
    found(t, "violated", finding("ref-count", "F06", released, block=1))


def test_unfinished_requests_may_hold_blocks_at_the_end() -> None:
    t = two_sharing()
    step_two(t)
    t.end()
    clean(t)


def test_a_freed_cached_block_comes_back_by_a_share() -> None:
    t = one_done()
    t.register(1, "k1", "a", P)
    t.leave("a", [1], cached=[1])
    t.add("b", P + Q, step=2)
    t.lookup("b", ["k1", "k2"], [1])
    t.share(1, "b", 0, 1, "k1")
    t.alloc(2, "b", 1)
    from hand import Row

    t.step(2, Row("b", Q, (1, 2), 4), sampled={"b": 25})
    t.finish("b")
    t.release(1, "b", 0, 0)
    t.free(1, cached=True)
    t.release(2, "b", 1, 0)
    t.free(2)
    t.end()
    clean(t)


def test_a_request_that_comes_back_under_a_second_name_is_another_request() -> None:
    t = one_done()
    t.leave("a", [1])
    t.step(2, t.admit(2, "a#2", Q, [1]), sampled={"a#2": 25})
    t.leave("a#2", [1])
    t.end()
    clean(t)


def test_the_same_miscount_later_is_a_finding_of_its_own_and_no_root() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2]), sampled={"a": 15, "b": 25})
    t.leave("a", [1])
    first = t.release(1, "a", 0, -1)
    t.step(2, t.admit(2, "c", R, [3]), sampled={"c": 35})
    t.leave("b", [2])
    later = t.release(2, "b", 0, -1)
    t.end()
    found(
        t, "violated",
        finding("ref-count", "F06", first, block=1, root=True),
        finding("ref-count", "F06", later, block=2, root=False),
    )  # fmt: skip
