"""`identity` (F01): a shared block holds what its new holder would have computed itself."""

from __future__ import annotations

from typing import Any

import pytest
from hand import Row, Trace, clean, decode, finding, found, leak

P, Q, R, S = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34), (41, 42, 43, 44)
TAIL = (91,)


def shared(
    mine: tuple[int, ...] = P,
    theirs: tuple[int, ...] = (*P, *TAIL),
    a: dict[str, Any] | None = None,
    b: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[Trace, int]:
    """Request a computes `mine` in block 1; b, with `theirs`, shares the block; that share."""
    t = Trace(**config)
    t.step(1, t.admit(1, "a", mine, [1], **(a or {})), sampled={"a": 15})
    t.register(1, "k1", "a", mine)
    t.add("b", theirs, step=2, **(b or {}))
    t.lookup("b", ["k1"], [1])
    seq = t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", theirs[4:], (1, 2), 4), sampled={"b": 95})
    t.end()
    return t, seq


def test_a_share_of_equal_tokens_is_clean() -> None:
    clean(shared()[0])


@pytest.mark.parametrize("at", range(4))
def test_a_share_of_other_tokens_leaks_wherever_they_differ(at: int) -> None:
    other = tuple(99 if i == at else token for i, token in enumerate(P))
    t, seq = shared(theirs=(*other, *TAIL))
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a", block=1, expected=99,
                actual=P[at], seq=seq, slot=4 + at),
        leak("F01", seq, victim="b", source="a", block=1),
    )  # fmt: skip


def test_a_share_of_a_second_block_whose_first_differs_leaks() -> None:
    """The block's own tokens agree; what comes before does not: the chain counts."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P), t.register(2, "k2", "a", Q, "k1")
    t.add("b", (*R, *Q, *TAIL), step=2)
    t.alloc(3, "b", 0)
    seq = t.share(2, "b", 1, 2, "k2")
    t.alloc(4, "b", 2)
    t.step(2, Row("b", R, (3, 2, 4)), sampled=None)
    t.step(3, Row("b", TAIL, (3, 2, 4), 8), sampled={"b": 95})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a", block=2),
        leak("F01", seq, victim="b", source="a", block=2),
    )  # fmt: skip


def test_a_share_at_another_index_leaks() -> None:
    """A prompt that begins with another's second block."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P), t.register(2, "k2", "a", Q, "k1")
    t.add("b", (*Q, *TAIL), step=2)
    seq = t.share(2, "b", 0, 2, "k2")
    t.alloc(4, "b", 1)
    t.step(2, Row("b", TAIL, (2, 4), 4), sampled={"b": 95})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a", block=2),
        leak("F01", seq, victim="b", source="a", block=2),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"tenant": "x"}, {"tenant": "y"}),
        ({"tenant": "x"}, {}),
        ({"adapter": "x"}, {"adapter": "y"}),
        ({"adapter": "x"}, {}),
        ({"extra_keys": ["img1"]}, {"extra_keys": ["img2"]}),
        ({"extra_keys": ["img1"]}, {}),
        ({"extra_keys": [[3, "img1"]]}, {"extra_keys": [[2, "img1"]]}),
        ({"extra_keys": [[3, "img1"]]}, {"extra_keys": [[3, "img2"]]}),
    ],
)
def test_a_share_across_tenants_adapters_or_extra_keys_leaks(a: dict, b: dict) -> None:
    t, seq = shared(a=a, b=b)
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a", block=1),
        leak("F01", seq, victim="b", source="a", block=1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"tenant": "x"}, {"tenant": "x"}),
        ({"adapter": "x"}, {"adapter": "x"}),
        ({"session": "x"}, {"session": "y"}),
        ({"extra_keys": ["img1"]}, {"extra_keys": [[0, "img1"]]}),
        ({"extra_keys": [[4, "img1"]]}, {"extra_keys": [[4, "img2"]]}),
        ({"extra_keys": [[1, "x"], [2, "y"]]}, {"extra_keys": [[2, "y"], [1, "x"]]}),
    ],
)
def test_a_share_of_equal_context_is_clean(a: dict, b: dict) -> None:
    clean(shared(a=a, b=b)[0])


def test_tenants_may_share_where_sharing_is_global() -> None:
    clean(shared(a={"tenant": "x"}, b={"tenant": "y"}, sharing="global")[0])


def test_tenants_may_not_share_where_sharing_is_by_tenant() -> None:
    t, seq = shared(a={"tenant": "x"}, b={"tenant": "y"}, sharing="tenant")
    found(
        t, "contaminated", finding("identity", "F01", seq), leak("F01", seq, victim="b")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "adapter", "requests"),
    [("weights", None, {}), ("adapter", "x", {"adapter": "x"})],
)
def test_a_share_across_an_epoch_is_no_identity_and_carries_f17(
    what: str, adapter: str | None, requests: dict
) -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1], **requests), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.event("EpochChanged", 2, epoch="e2", what=what, adapter=adapter)
    t.add("b", (*P, *TAIL), **requests)
    seq = t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", TAIL, (1, 2), 4), sampled={"b": 95})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    assert {f["class"] for f in report["findings"]} == {"F17"}
    assert {f["culprit_seq"] for f in report["findings"]} == {seq}
    assert [f["root"] for f in report["findings"]].count(True) == 1
    assert "identity" not in {f["check"] for f in report["findings"]}


def test_an_epoch_of_another_adapter_does_not_matter() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1], adapter="x"), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.event("EpochChanged", 2, epoch="e2", what="adapter", adapter="y")
    t.add("b", (*P, *TAIL), adapter="x")
    t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", TAIL, (1, 2), 4), sampled={"b": 95})
    t.end()
    clean(t)


def test_a_share_within_the_present_epoch_is_clean() -> None:
    t = Trace()
    t.event("EpochChanged", 1, epoch="e2", what="weights")
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, *TAIL), step=2)
    t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", TAIL, (1, 2), 4), sampled={"b": 95})
    t.end()
    clean(t)


def chained(parent: str | None, first: str = "k1") -> tuple[Trace, int]:
    """a registers P and Q, Q with that parent; b shares both; the share of the second."""
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 15})
    t.register(1, first, "a", P), t.register(2, "k2", "a", Q, parent)
    t.add("b", (*P, *Q, *TAIL), step=2)
    t.share(1, "b", 0, 2, first)
    seq = t.share(2, "b", 1, 2, "k2")
    t.alloc(3, "b", 2)
    t.step(2, Row("b", TAIL, (1, 2, 3), 8), sampled={"b": 95})
    t.end()
    return t, seq


def test_a_right_or_absent_parent_key_is_clean() -> None:
    clean(chained("k1")[0])
    clean(chained(None)[0])


def test_a_wrong_parent_key_violates_at_the_share() -> None:
    t, seq = chained("k9")
    found(
        t, "violated",
        finding("identity", "F01", seq, victim="b", block=2, expected="k1", actual="k9"),
    )  # fmt: skip


def test_a_chain_that_is_its_own_parent_violates_at_the_share() -> None:
    t, seq = chained("k2")
    found(t, "violated", finding("identity", "F01", seq, victim="b", block=2))


def test_a_wrong_parent_that_nobody_relies_on_is_silent() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P), t.register(2, "k2", "a", Q, "k9")
    t.end()
    clean(t)


def test_three_that_share_one_wrong_block_are_a_finding_each_and_one_root() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    shares = []
    for n, name in enumerate("bc"):
        t.add(name, (*R, 90 + n), step=2 + n)
        shares.append(t.share(1, name, 0, 2 + n, "k1"))
        t.alloc(2 + n, name, 1)
        t.step(2 + n, Row(name, (90 + n,), (1, 2 + n), 4), sampled={name: 95})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", shares[0], victim="b", root=True),
        leak("F01", shares[0], victim="b"),
        finding("identity", "F01", shares[1], victim="c", root=False),
        leak("F01", shares[1], victim="c"),
    )  # fmt: skip


def test_who_shares_what_the_victim_computed_is_also_affected_and_reads_nothing_foreign() -> None:
    """b reads a's block and computes its own second block from it; c shares both."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", R + Q, step=2)
    seq = t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", Q, (1, 2), 4), sampled={"b": 95})
    t.register(2, "k2", "b", Q, "k1")
    t.add("c", (*R, *Q, *TAIL), step=3)
    later = t.share(1, "c", 0, 3, "k1")
    t.share(2, "c", 1, 2, "k2")
    t.alloc(3, "c", 2)
    t.step(3, Row("c", TAIL, (1, 2, 3), 8), sampled={"c": 95})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a"),
        leak("F01", seq, victim="b", source="a", also_affected=["c"]),
        finding("identity", "F01", later, victim="c", source="a", root=False),
        leak("F01", later, victim="c", source="a"),
    )  # fmt: skip


def test_a_share_of_a_block_written_in_the_same_step_is_legal() -> None:
    for publish in ("scheduled", None):
        t = Trace(**({"publish": publish} if publish else {}))
        a = t.admit(1, "a", (*P, 15), [1, 5])
        t.register(1, "k1", "a", P)
        t.add("b", (*P, *TAIL))
        t.lookup("b", ["k1"], [1])
        t.share(1, "b", 0, 2, "k1")
        t.alloc(2, "b", 1)
        t.step(1, a, Row("b", TAIL, (1, 2), 4), sampled={"a": 16, "b": 95})
        t.end()
        clean(t)


def test_a_same_step_share_of_other_tokens_leaks_by_the_share() -> None:
    t = Trace(publish="scheduled")
    a = t.admit(1, "a", (*P, 15), [1, 5])
    t.register(1, "k1", "a", P)
    t.add("b", (*R, *TAIL))
    seq = t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(1, a, Row("b", TAIL, (1, 2), 4), sampled={"a": 16, "b": 95})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a"),
        leak("F01", seq, victim="b", source="a"),
    )  # fmt: skip


def test_a_fork_takes_over_its_parents_tokens() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    t.add("b", (*P, 51), step=2, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=5)
    t.share(1, "b", 0, 2, None)
    t.alloc(3, "b", 1)
    t.copy(2, 3, 1)
    t.step(2, decode("a", 15, (1, 2), 5), Row("b", (16,), (1, 3), 5, "decode"),
           built={"tokens": [15, 15]}, written={"tokens": [15, 15]})  # fmt: skip
    t.event("TokensSampled", requests=["a", "b"], tokens=[16, 17], positions=[6, 6], rows=[0, 1])
    report = t.judged()
    assert not [f for f in report["findings"] if f["check"] in ("identity", "foreign-read")]


def test_a_fork_that_takes_over_other_tokens_leaks() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.add("b", (*R, *TAIL), step=2, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=4)
    seq = t.share(1, "b", 0, 2, None)
    t.alloc(2, "b", 1)
    t.step(2, Row("b", TAIL, (1, 2), 4), sampled={"b": 95})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a"),
        leak("F01", seq, victim="b", source="a"),
    )  # fmt: skip


def test_duplicate_keys_on_several_blocks_are_clean() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "c", P, [3]), sampled={"a": 15, "c": 15})
    t.register(1, "k1", "a", P), t.register(3, "k1", "c", P)
    t.leave("a", [1])
    t.unregister(1, "k1")
    t.add("b", (*P, *TAIL), step=2)
    t.lookup("b", ["k1"], [3])
    t.share(3, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", TAIL, (3, 2), 4), sampled={"b": 95})
    t.end()
    clean(t)
