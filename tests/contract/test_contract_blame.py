"""Blame: one root an incident, the decision that carries it out, and who else is affected."""

from __future__ import annotations

import pytest
from hand import PAD, Row, Trace, clean, decode, finding, found, leak

P, Q, R, S = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34), (41, 42, 43, 44)


def roots(t: Trace) -> list[tuple[str, str, int]]:
    return [(f["check"], f["class"], f["culprit_seq"]) for f in t.judged()["findings"] if f["root"]]


def test_a_foreign_read_without_a_broken_rule_names_its_reading_build_and_no_class() -> None:
    """x writes into a's block in a step that was built otherwise: no mapping, no share, no rule."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "x", R, [2]), sampled={"a": 15, "x": 35})
    t.event(
        "SlotsWritten", 2, write="decode", requests=["x"], positions=[0], tokens=[31], slots=[4]
    )
    t.alloc(3, "a", 1)
    s = t.step(2, decode("a", 15, (1, 3), 4), sampled={"a": 16})
    t.end()
    report = t.judged()
    reads = [f for f in report["findings"] if f["check"] == "foreign-read"]
    assert report["verdict"] == "contaminated"
    assert [(f["victim"], f["source"], f["block"], f["slot"]) for f in reads] == [("a", "x", 1, 4)]
    assert [f["root"] for f in report["findings"]].count(True) == 1
    if reads[0]["class"] is None:
        assert reads[0]["culprit_seq"] == s.built


def test_pad_data_counts_as_foreign() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.alloc(2, "a", 1, step=2)
    t.step(2, decode("a", 15, (1, 2), 4), PAD, built={"slot_mapping": [8, 5]}, sampled={"a": 16})
    t.event("SlotsWritten", write="pad", requests=[None], positions=[0], tokens=[0], slots=[5])
    t.step(3, decode("a", 16, (1, 2), 5), sampled={"a": 17})
    t.end()
    report = t.judged()
    assert report["verdict"] == "contaminated"
    reads = [f for f in report["findings"] if f["check"] == "foreign-read"]
    assert {(f["victim"], f["source"], f["slot"]) for f in reads} == {("a", None, 5)}
    assert [f["root"] for f in report["findings"]].count(True) == 1


def test_a_foreign_read_repeated_in_every_step_is_one_finding() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*R, 61), step=2)
    seq = t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    first = t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 62})
    t.step(3, decode("b", 62, (1, 2), 5), sampled={"b": 63})
    t.step(4, decode("b", 63, (1, 2), 6), sampled={"b": 64})
    t.end()
    found(t, "contaminated", finding("identity", "F01", seq), leak("F01", seq, seq=first.built))


def test_one_victim_and_two_sources_are_a_read_each() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "x", Q, [2]), sampled={"a": 15, "x": 25})
    t.register(1, "k1", "a", P), t.register(2, "k2", "x", Q)
    t.add("b", (*R, *S, 61), step=2)
    first = t.share(1, "b", 0, 2, "k1")
    t.share(2, "b", 1, 2, "k2")
    t.alloc(3, "b", 2)
    t.step(2, Row("b", (61,), (1, 2, 3), 8), sampled={"b": 62})
    t.end()
    report = t.judged()
    assert roots(t) == [("identity", "F01", first)]
    reads = {(f["source"], f["block"]) for f in report["findings"] if f["check"] == "foreign-read"}
    assert reads == {("a", 1), ("x", 2)}


def test_two_independent_incidents_have_a_root_each() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "x", Q, [2]), sampled={"a": 15, "x": 25})
    t.register(1, "k1", "a", P)
    t.leave("x", [2])
    double = t.release(2, "x", 0, -1)
    t.add("b", (*R, 61), step=2)
    shared = t.share(1, "b", 0, 2, "k1")
    t.alloc(3, "b", 1)
    t.step(2, Row("b", (61,), (1, 3), 4), sampled={"b": 62})
    t.end()
    assert roots(t) == [("ref-count", "F06", double), ("identity", "F01", shared)]


def test_a_victim_that_is_released_and_comes_back_leaks_no_second_time_by_itself() -> None:
    """Not transitive: c reads b's own keys, which b computed from what it read of a's."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*R, *S), step=2)
    seq = t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", S, (1, 2), 4), sampled={"b": 62})
    t.register(2, "k2", "b", S, "k1")
    t.add("c", (*R, *S, 71), step=3)
    t.alloc(4, "c", 0)
    t.share(2, "c", 1, 2, "k2"), t.alloc(5, "c", 2)
    t.step(3, Row("c", R, (4, 2, 5)))
    t.step(4, Row("c", (71,), (4, 2, 5), 8), sampled={"c": 72})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, victim="b", source="a"),
        leak("F01", seq, victim="b", source="a", also_affected=["c"]),
    )  # fmt: skip


def test_a_block_freed_while_held_and_all_that_follows_is_one_incident() -> None:
    """Freed, handed out, written, unregistered, shared anew: it all belongs to the free."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 62})
    t.finish("a")
    t.release(1, "a", 0, 1)
    freed = t.free(1)
    c = t.admit(3, "c", R, [1])
    t.unregister(1, "k1", "reused")
    t.step(3, c, decode("b", 62, (1, 2), 5), sampled={"c": 35, "b": 63})
    t.register(1, "k3", "c", R)
    t.add("d", (*R, 71), step=4)
    t.share(1, "d", 0, 2, "k3"), t.alloc(4, "d", 1)
    t.alloc(5, "c", 1)
    t.step(4, Row("d", (71,), (1, 4), 4), decode("c", 35, (1, 5), 4), decode("b", 63, (1, 2), 6))
    t.finish("b")
    t.release(1, "b", 0, 1), t.release(2, "b", 1, 0), t.free(2)
    t.end()
    report = t.judged()
    assert roots(t) == [("ref-count", "F06", freed)]
    assert {f["class"] for f in report["findings"]} == {"F06"}
    assert [(f["victim"], f["source"]) for f in report["findings"] if not f["root"]][:1] == [
        ("b", "c")
    ]


def test_an_old_key_over_a_block_freed_while_held_belongs_to_the_free() -> None:
    """b's hold outlives the free; c overwrites; d is given the block under its old key."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 62})
    t.finish("a")
    t.release(1, "a", 0, 1)
    freed = t.free(1)
    c = t.admit(3, "c", R, [1])
    t.unregister(1, "k1", "reused")
    t.step(3, c, sampled={"c": 35})
    t.register(1, "k1", "b", P)
    t.add("d", (*P, 71), step=4)
    t.share(1, "d", 0, 2, "k1"), t.alloc(4, "d", 1)
    t.step(4, Row("d", (71,), (1, 4), 4), sampled={"d": 72})
    t.end()
    report = t.judged()
    assert roots(t) == [("ref-count", "F06", freed)]
    assert {f["class"] for f in report["findings"]} == {"F06"}
    assert ("d", "c") in [(f["victim"], f["source"]) for f in report["findings"]]


def test_a_double_release_repeated_with_other_blocks_has_one_root() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), sampled={"a": 25})
    t.leave("a", [1, 2])
    first = t.release(1, "a", 0, -1)
    t.release(2, "a", 1, -1)
    t.end()
    found(t, "violated", finding("ref-count", "F06", first, block=1))


@pytest.mark.parametrize("unregister", [True, False])
def test_a_b_a_is_clean_when_unregistered_and_f02_when_not(unregister: bool) -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.leave("a", [1], cached=[1])
    t.add("b", R, step=2)
    if unregister:
        t.unregister(1, "k1", "reused")
    reused = t.alloc(1, "b", 0)
    t.step(2, Row("b", R, (1,)), sampled={"b": 35})
    t.leave("b", [1], cached=[1])
    t.add("a2", (*P, 61), step=3)
    if unregister:
        t.lookup("a2", ["k1"], [])
        t.alloc(1, "a2", 0), t.alloc(2, "a2", 1)
        t.step(3, Row("a2", (*P, 61), (1, 2)), sampled={"a2": 62})
        t.end()
        clean(t)
        return
    t.lookup("a2", ["k1"], [1])
    t.share(1, "a2", 0, 1, "k1"), t.alloc(2, "a2", 1)
    t.step(3, Row("a2", (61,), (1, 2), 4), sampled={"a2": 62})
    t.end()
    found(
        t, "contaminated",
        finding("stale-index", "F02", reused, block=1),
        leak("F02", reused, victim="a2", source="b", block=1, slot=4),
    )  # fmt: skip


def test_a_write_by_a_later_step_into_what_a_step_under_way_reads_counts_as_read() -> None:
    """a's step is dispatched; before it completes, x writes into a's block."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "x", R, [2]), sampled={"a": 15, "x": 35})
    t.alloc(3, "a", 1, step=2)
    a = decode("a", 15, (1, 3), 4)
    t.schedule([a])
    built = t.build([a])
    t.mask([a]), t.event("StepDispatched")
    t.alloc(4, "x", 1, step=3)
    x = decode("x", 35, (2, 4), 4)
    t.schedule([x])
    wrong = t.build([x], slot_mapping=[4])
    t.mask([x]), t.event("StepDispatched")
    t.event(
        "SlotsWritten", 3, write="decode", requests=["x"], positions=[4], tokens=[35], slots=[4]
    )
    t.write([a], step=2)
    t.event("StepCompleted", 3)
    t.end()
    report = t.judged()
    assert roots(t) == [("address", "F08", wrong)]
    reads = [f for f in report["findings"] if f["check"] == "foreign-read"]
    assert [(f["victim"], f["source"], f["slot"]) for f in reads] == [("a", "x", 4)]
    assert {f["class"] for f in report["findings"]} == {"F08"}
    assert built < wrong


def test_decisions_are_named_where_the_trace_has_them() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*R, 61), step=2)
    t.event("DecisionMade", decision="share:b:0:0", about="share", request="b", choice=1)
    seq = t.share(1, "b", 0, 2, "k1", decision="share:b:0:0")
    t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 62})
    t.end()
    found(
        t, "contaminated",
        finding("identity", "F01", seq, decision="share:b:0:0"),
        leak("F01", seq, decision="share:b:0:0"),
    )  # fmt: skip


def test_rows_of_a_finished_request_are_not_judged() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.alloc(2, "a", 1, step=2)
    row = decode("a", 15, (1, 2), 4)
    t.schedule([row]), t.build([row]), t.mask([row])
    t.finish("a", "aborted")
    t.event("StepDispatched"), t.write([row]), t.event("StepCompleted")
    t.release(1, "a", 0, 0), t.free(1), t.release(2, "a", 1, 0), t.free(2)
    t.end()
    clean(t)


def shared_wrongly(t: Trace) -> int:
    """d takes block 1, which holds P, for other tokens; the share."""
    t.add("d", (*R, 71), step=4)
    seq = t.share(1, "d", 0, 2, "k1")
    t.alloc(8, "d", 1)
    t.step(4, Row("d", (71,), (1, 8), 4), sampled={"d": 72})
    return seq


def test_a_wrong_share_of_a_block_that_is_never_released_is_an_incident_of_its_own() -> None:
    """The miscount changed nothing in the block: the share is wrong by itself."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    finished = t.finish("a")
    t.step(2, t.admit(2, "x", Q, [2]), sampled={"x": 25})
    seq = shared_wrongly(t)
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", finished, block=1),
        finding("identity", "F01", seq, victim="d", source="a"),
        leak("F01", seq, victim="d", source="a"),
    )  # fmt: skip


def test_a_wrong_share_of_a_block_freed_while_held_is_an_incident_of_its_own() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 62})
    t.finish("a")
    t.release(1, "a", 0, 1)
    freed = t.free(1, cached=True)
    seq = shared_wrongly(t)
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", freed, block=1),
        finding("identity", "F01", seq, victim="d", source="a"),
        leak("F01", seq, victim="d", source="a"),
    )  # fmt: skip


def test_a_hold_outlives_a_free_over_several_owners() -> None:
    """b holds block 1; freed; c has it and gives it back rightly; e has it now; b reads."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 62})
    t.finish("a")
    t.release(1, "a", 0, 1)
    freed = t.free(1, cached=True)
    t.unregister(1, "k1", "evicted")
    t.step(3, t.admit(3, "c", Q, [1]), sampled={"c": 25})
    t.leave("c", [1])
    t.step(4, t.admit(4, "e", R, [1]), sampled={"e": 35})
    t.step(5, decode("b", 62, (1, 2), 5), sampled={"b": 63})
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", freed, block=1),
        leak("F06", freed, victim="b", source="e", block=1),
    )  # fmt: skip


def test_a_share_of_what_a_kept_table_entry_wrote_belongs_to_the_release() -> None:
    """b's registered block is written over through a's kept entry; c shares it by its key."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.event("RequestPreempted", 2, request="a")
    released = t.release(1, "a", 0, 0)
    t.free(1)
    t.step(2, t.admit(2, "b", R, [1]), sampled={"b": 35})
    t.register(1, "k3", "b", R)
    t.alloc(3, "a", 1, step=3)
    t.step(3, Row("a", (*P, 15), (1, 3)), sampled={"a": 16})
    t.add("c", (*R, 71), step=4)
    t.share(1, "c", 0, 2, "k3"), t.alloc(4, "c", 1)
    t.step(4, Row("c", (71,), (1, 4), 4), sampled={"c": 72})
    t.end()
    found(
        t, "contaminated",
        finding("dangling-table", "F07", released, block=1, victim="a"),
        leak("F07", released, victim="c", source="a", block=1),
    )  # fmt: skip


def test_a_share_of_what_a_wrong_slot_overwrote_belongs_to_the_build() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", R, [2])
    t.step(1, a, b, sampled={"a": 15, "b": 35})
    t.register(2, "k3", "b", R)
    t.alloc(3, "a", 1, step=2)
    s = t.step(2, decode("a", 15, (1, 3), 4), built={"slot_mapping": [8]}, written={"slots": [8]},
               sampled={"a": 16})  # fmt: skip
    t.add("c", (*R, 71), step=3)
    t.share(2, "c", 0, 2, "k3"), t.alloc(4, "c", 1)
    t.step(3, Row("c", (71,), (2, 4), 4), sampled={"c": 72})
    t.end()
    found(
        t, "contaminated",
        finding("address", "F08", s.built),
        leak("F08", s.built, victim="c", source="a", block=2, slot=8),
    )  # fmt: skip


def test_a_wrong_write_of_a_fork_into_a_shared_block_and_its_later_sharers_are_one_incident() -> (
    None
):
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(3, "b", 1)
    s = t.step(2, Row("b", (*P, 61), (1, 3)), built={"tokens": [*P, 61]}, sampled={"b": 62})
    t.event("RequestRevised", 3, request="b", tokens_kept=0, tokens=[*Q, 61])
    w = t.step(3, Row("b", (*Q, 61), (1, 3)), sampled={"b": 63})
    t.add("c", (*P, 71), step=4)
    t.share(1, "c", 0, 3, "k1"), t.alloc(4, "c", 1)
    t.step(4, Row("c", (71,), (1, 4), 4), sampled={"c": 72})
    t.end()
    report = t.judged()
    assert roots(t) == [("exclusive-write", "F19", s.written)]
    assert {f["class"] for f in report["findings"]} == {"F19"}
    assert w.written is not None


def test_a_missing_copy_whose_leftovers_are_shared_on_is_one_incident() -> None:
    """Two victims, one allocation that copied nothing."""
    t = Trace()
    t.step(1, t.admit(1, "x", Q, [3]), sampled={"x": 25})
    t.leave("x", [3])
    t.step(2, t.admit(2, "a", (*P, 51, 52), [1, 2]), sampled={"a": 15})
    t.add("b", (*P, 51, 52), step=3, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=6)
    t.share(1, "b", 0, 2, None), t.share(2, "b", 1, 2, None)
    t.event("RequestRevised", request="b", tokens_kept=6, tokens=[16])
    allocated = t.alloc(3, "b", 1)
    t.release(2, "b", 1, 1)
    t.step(3, decode("a", 15, (1, 2), 6), decode("b", 16, (1, 3), 6), sampled={"a": 17, "b": 18})
    t.end()
    found(
        t, "contaminated",
        finding("exclusive-write", "F19", allocated, block=3, victim="b"),
        leak("F19", allocated, victim="b", source="x", block=3),
    )  # fmt: skip


def test_a_release_that_names_the_wrong_block_is_one_incident() -> None:
    """Block 9 is released in the place of block 1, which is freed all the same."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), t.admit(1, "x", Q, [2]), sampled={"a": 15, "x": 25})
    t.finish("a")
    wrong = t.release(2, "a", 0, 0)
    t.free(1)
    t.step(2, t.admit(2, "c", R, [3]), sampled={"c": 35})
    t.end()
    assert roots(t) == [("ref-count", "F06", wrong)]


def test_a_sample_that_goes_to_another_request_explains_the_tokens_it_is_given_next() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2])
    s = t.step(1, a, b, sampled={"a": 15, "b": 25}, samples={"requests": ["b", "a"]})
    t.alloc(3, "a", 1, step=2), t.alloc(4, "b", 1)
    t.step(2, decode("a", 15, (1, 3), 4), decode("b", 25, (2, 4), 4), sampled={"a": 16, "b": 26})
    t.end()
    assert roots(t) == [("row-identity", "F11", s.sampled)]


def test_a_row_with_a_wrong_name_is_one_incident_with_its_mask_and_sample() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2])
    t.add("c", R)
    s = t.step(1, a, b, built={"requests": ["a", "c"]}, sampled={"a": 15, "b": 25})
    t.end()
    assert roots(t) == [("row-identity", "F11", s.built)]


def test_a_count_that_is_wrong_shifts_the_rows_behind_it_in_one_incident() -> None:
    t = Trace()
    rows = [
        t.admit(1, n, x, [i + 1]) for i, (n, x) in enumerate(zip("abc", (P, Q, R), strict=True))
    ]
    s = t.step(1, *rows, built={"query_lens": [3, 4, 4]}, sampled={"a": 15, "b": 25, "c": 35})
    t.end()
    assert roots(t) == [("row-identity", "F11", s.built)]


def test_a_wrong_share_beside_a_wrong_slot_of_its_producer_is_an_incident_of_its_own() -> None:
    """a's block is right where d shares it; what a wrote wrongly lies elsewhere."""
    t = Trace()
    a = t.admit(1, "a", P + Q, [1, 2])
    slots = [4, 5, 6, 7, 8, 9, 10, 20]
    s = t.step(1, a, built={"slot_mapping": slots}, written={"slots": slots}, sampled={"a": 15})
    t.register(1, "k1", "a", P)
    seq = shared_wrongly(t)
    t.end()
    found(
        t, "contaminated",
        finding("address", "F08", s.built),
        finding("identity", "F01", seq, victim="d", source="a"),
        leak("F01", seq, victim="d", source="a"),
    )  # fmt: skip
