"""`stale-index` (F02): an index entry names a block whose present generation carries the key."""

from __future__ import annotations

from hand import Row, Trace, clean, finding, found, leak

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)
TAIL = (91,)


def reused(unregister: str | None) -> tuple[Trace, int]:
    """A -> B: a's registered block 1 is handed to b; the allocation."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.leave("a", [1], cached=[1])
    t.add("b", Q, step=2)
    if unregister == "before":
        t.unregister(1, "k1", "reused")
    seq = t.alloc(1, "b", 0)
    if unregister == "after":
        t.unregister(1, "k1", "reused")
    t.step(2, Row("b", Q, (1,)), sampled={"b": 25})
    return t, seq


def third(t: Trace, key: str = "k1") -> int:
    """-> A: c asks for a's prompt again and is given block 1; the share."""
    t.add("c", (*P, *TAIL), step=3)
    t.lookup("c", [key], [1])
    share = t.share(1, "c", 0, 2, key)
    t.alloc(2, "c", 1)
    t.step(3, Row("c", TAIL, (1, 2), 4), sampled={"c": 95})
    return share


def test_a_block_unregistered_before_it_is_handed_out_is_clean() -> None:
    t, _ = reused("before")
    t.end()
    clean(t)


def test_a_kept_key_is_blamed_on_the_allocation_that_reused_the_block() -> None:
    t, allocated = reused(None)
    third(t)
    t.end()
    found(
        t, "contaminated",
        finding("stale-index", "F02", allocated, block=1),
        leak("F02", allocated, victim="c", source="b", block=1, slot=4),
    )  # fmt: skip


def test_a_kept_key_that_nobody_hits_violates() -> None:
    t, allocated = reused(None)
    t.end()
    found(t, "violated", finding("stale-index", "F02", allocated, block=1))


def test_a_block_whose_key_went_and_is_hit_all_the_same_is_blamed_on_the_share() -> None:
    t, _ = reused("before")
    share = third(t)
    t.end()
    found(
        t, "contaminated",
        finding("stale-index", "F02", share, block=1, victim="c"),
        leak("F02", share, victim="c", source="b", block=1),
    )  # fmt: skip


def test_a_key_that_was_never_registered_is_blamed_on_the_share() -> None:
    t, _ = reused("before")
    share = third(t, key="k7")
    t.end()
    found(
        t, "contaminated",
        finding("stale-index", "F02", share, block=1, victim="c"),
        leak("F02", share, victim="c", source="b", block=1),
    )  # fmt: skip


def test_a_hit_compared_by_its_own_tokens_only_after_reuse_is_the_shares() -> None:
    """block-local-guard: the block was registered under the key again, for another chain."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P), t.register(2, "k12", "a", Q, "k1")
    t.leave("a", [1, 2], cached=[1, 2])
    t.add("b", R + Q, step=2)
    t.alloc(3, "b", 0)
    t.unregister(2, "k12", "reused")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", R + Q, (3, 2)), sampled={"b": 25})
    t.register(3, "k3", "b", R), t.register(2, "k32", "b", Q, "k3")
    t.add("c", (*P, *Q, *TAIL), step=3)
    t.share(1, "c", 0, 1, "k1")
    share = t.share(2, "c", 1, 2, "k12")
    t.alloc(4, "c", 2)
    t.step(3, Row("c", TAIL, (1, 2, 4), 8), sampled={"c": 95})
    t.end()
    found(
        t, "contaminated",
        finding("stale-index", "F02", share, block=2, victim="c"),
        leak("F02", share, victim="c", source="b", block=2),
    )  # fmt: skip


def test_a_reused_block_that_is_registered_under_a_new_key_keeps_only_that() -> None:
    t, _ = reused("before")
    t.register(1, "k2", "b", Q)
    t.add("c", (*Q, *TAIL), step=3)
    t.lookup("c", ["k2"], [1])
    t.share(1, "c", 0, 2, "k2")
    t.alloc(2, "c", 1)
    t.step(3, Row("c", TAIL, (1, 2), 4), sampled={"c": 95})
    t.end()
    clean(t)


def test_a_lookup_that_names_a_block_under_another_key_is_reported() -> None:
    """The hit is taken by no share: the lookup alone shows it."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("c", (*R, *TAIL), step=2)
    seq = t.lookup("c", ["k3"], [1])
    t.alloc(2, "c", 0), t.alloc(3, "c", 1)
    t.step(2, Row("c", (*R, *TAIL), (2, 3)), sampled={"c": 95})
    t.end()
    found(t, "violated", finding("stale-index", "F02", seq, block=1))


def test_an_evicted_block_may_be_unregistered_long_before_its_reuse() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.leave("a", [1], cached=[1])
    t.unregister(1, "k1", "evicted")
    t.step(2, t.admit(2, "b", Q, [2]), sampled={"b": 25})
    t.step(3, t.admit(3, "c", R, [1]), sampled={"c": 35})
    t.end()
    clean(t)


def test_a_second_key_of_the_same_block_must_go_too() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.register(1, "k1b", "a", P)
    t.leave("a", [1], cached=[1])
    t.add("b", Q, step=2)
    t.unregister(1, "k1", "reused")
    seq = t.alloc(1, "b", 0)
    t.step(2, Row("b", Q, (1,)), sampled={"b": 25})
    t.end()
    found(t, "violated", finding("stale-index", "F02", seq, block=1))


def test_three_reuses_without_unregistering_are_a_finding_each_and_one_root() -> None:
    t = Trace()
    rows = [t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2])]
    t.step(1, *rows, sampled={"a": 15, "b": 25})
    t.register(1, "k1", "a", P), t.register(2, "k2", "b", Q)
    t.leave("a", [1], cached=[1])
    t.step(2, c := t.admit(2, "c", R, [1]), sampled={"c": 35})
    first = next(
        i for i, x in enumerate(t.lines) if x["kind"] == "BlockAllocated" and x["step"] == 2
    )
    t.leave("b", [2], cached=[2])
    t.step(3, t.admit(3, "d", R, [2]), sampled={"d": 35})
    second = next(
        i for i, x in enumerate(t.lines) if x["kind"] == "BlockAllocated" and x["step"] == 3
    )
    t.end()
    assert c.request == "c"
    found(
        t, "violated",
        finding("stale-index", "F02", first, block=1, root=True),
        finding("stale-index", "F02", second, block=2, root=False),
    )  # fmt: skip


def test_a_reset_index_is_clean() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.leave("a", [1], cached=[1])
    t.unregister(1, "k1", "reset")
    t.event("EpochChanged", 2, epoch="e2", what="pool")
    t.step(2, t.admit(2, "b", P, [1]), sampled={"b": 15})
    t.end()
    clean(t)
