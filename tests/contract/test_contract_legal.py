"""What other engines may do: legal traces of every kind, in which nothing may be found."""

from __future__ import annotations

from typing import Any

import pytest
from hand import PAD, Row, Trace, clean, decode

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def registered(**config: Any) -> Trace:
    """a has computed P in block 1, which is registered as k1."""
    t = Trace(**config)
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.number = 2
    return t


@pytest.mark.parametrize("publish", [None, "scheduled"])
def test_registering_while_scheduling_and_hits_in_the_same_step(publish: str | None) -> None:
    """vLLM caches full blocks when it allocates them; the next request of the step hits them."""
    t = Trace(**({"publish": publish} if publish else {}))
    a = t.admit(1, "a", (*P, *Q, 51), [1, 2, 3])
    t.register(1, "k1", "a", P), t.register(2, "k2", "a", Q, "k1")
    t.add("b", (*P, *Q, 61))
    t.lookup("b", ["k1", "k2"], [1, 2])
    t.share(1, "b", 0, 2, "k1"), t.share(2, "b", 1, 2, "k2")
    t.alloc(4, "b", 2)
    t.step(1, a, Row("b", (61,), (1, 2, 4), 8), sampled={"a": 15, "b": 16})
    t.end()
    clean(t)


def test_writes_logged_after_their_completion() -> None:
    t = Trace()
    a = t.admit(1, "a", P, [1])
    t.schedule([a]), t.build([a]), t.mask([a]), t.event("StepDispatched")
    t.event("StepCompleted"), t.write([a]), t.sample([a], {"a": 15})
    t.alloc(2, "a", 1, step=2)
    row = decode("a", 15, (1, 2), 4)
    t.schedule([row]), t.build([row]), t.mask([row]), t.event("StepDispatched")
    t.event("StepCompleted"), t.write([row]), t.sample([row], {"a": 16})
    t.end()
    clean(t)


def test_writes_logged_after_the_next_steps_dispatch() -> None:
    t = Trace()
    a = t.admit(1, "a", P, [1])
    t.schedule([a]), t.build([a]), t.mask([a]), t.event("StepDispatched")
    t.alloc(2, "a", 1, step=2)
    row = decode("a", 15, (1, 2), 4)
    t.schedule([row]), t.build([row]), t.mask([row]), t.event("StepDispatched")
    t.write([a], step=1), t.event("StepCompleted", 1), t.sample([a], {"a": 15}, step=1)
    t.write([row], step=2), t.event("StepCompleted", 2), t.sample([row], {"a": 16}, step=2)
    t.end()
    clean(t)


def test_writes_logged_after_the_next_steps_scheduling_and_sharing() -> None:
    """b shares what step 1 computes, before its writes are logged."""
    for publish in ("scheduled", None):
        t = Trace(**({"publish": publish} if publish else {}))
        a = t.admit(1, "a", (*P, 51), [1, 2])
        t.register(1, "k1", "a", P)
        t.schedule([a]), t.build([a]), t.mask([a]), t.event("StepDispatched")
        t.event("StepCompleted"), t.sample([a], {"a": 15})
        t.add("b", (*P, 61), step=2)
        t.lookup("b", ["k1"], [1])
        t.share(1, "b", 0, 2, "k1")
        t.alloc(3, "b", 1)
        row = Row("b", (61,), (1, 3), 4)
        t.schedule([row])
        t.write([a], step=1)
        t.number = 2
        t.build([row]), t.mask([row]), t.event("StepDispatched"), t.write([row])
        t.event("StepCompleted"), t.sample([row], {"b": 16})
        t.end()
        clean(t)


def test_one_completion_for_several_steps() -> None:
    t = Trace()
    a = t.admit(1, "a", P, [1])
    t.schedule([a]), t.build([a]), t.mask([a]), t.event("StepDispatched"), t.write([a])
    t.alloc(2, "a", 1, step=2)
    row = decode("a", 15, (1, 2), 4)
    t.schedule([row]), t.build([row]), t.mask([row]), t.event("StepDispatched"), t.write([row])
    t.event("StepCompleted", 2)
    t.sample([a], {"a": 15}, step=1), t.sample([row], {"a": 16}, step=2)
    t.end()
    clean(t)


def test_rows_in_another_order_in_every_event() -> None:
    t = Trace()
    rows = [
        t.admit(1, n, x, [i + 1]) for i, (n, x) in enumerate(zip("abc", (P, Q, R), strict=True))
    ]
    a, b, c = rows
    t.schedule([c, a, b]), t.build([b, c, a]), t.mask([b, c, a], "pool")
    t.event("StepDispatched"), t.write([a, c, b]), t.event("StepCompleted")
    t.sample([b, c, a], {"a": 1, "b": 2, "c": 3})
    t.end()
    clean(t)


@pytest.mark.parametrize("slot", [-1, 0, 3])
def test_pads_that_write_nowhere_or_into_a_sentinel(slot: int) -> None:
    t = Trace(sentinels=[0])
    a = t.admit(1, "a", P, [1])
    t.schedule([a])
    t.build([a, PAD, PAD], slot_mapping=[4, 5, 6, 7, slot, slot], block_tables=[[1], [], [0]])
    t.mask([a, PAD, PAD]), t.event("StepDispatched"), t.write([a])
    if slot >= 0:
        t.event("SlotsWritten", write="pad", requests=[None, None], positions=[0, 0],
                tokens=[0, 0], slots=[slot, slot])  # fmt: skip
    t.event("StepCompleted"), t.sample([a], {"a": 15})
    t.end()
    clean(t)


def test_dummy_runs_of_pads_alone() -> None:
    t = Trace(sentinels=[0])
    t.number = 1
    t.build([PAD, PAD]), t.event("StepDispatched")
    t.event("SlotsWritten", write="dummy", requests=[None, None], positions=[0, 0], slots=[0, 1])
    t.event("StepCompleted")
    t.step(2, t.admit(2, "a", P, [1]), sampled={"a": 15})
    t.end()
    clean(t)


def test_a_null_block_fills_the_tables_behind_the_window() -> None:
    t = Trace(sentinels=[0], windows=[4])
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), window=4, sampled={"a": 15})
    t.release(1, "a", 0, 0), t.free(1)
    t.alloc(3, "a", 2, step=2)
    t.step(2, decode("a", 15, (0, 2, 3), 8), window=4, sampled={"a": 16})
    t.step(3, t.admit(3, "b", R, [1]), decode("a", 16, (0, 2, 3), 9), window=4,
           sampled={"a": 17, "b": 35})  # fmt: skip
    t.end()
    clean(t)


def grouped(behind: int | None) -> Trace:
    """Two KV groups with their own blocks; group 1 has a window and gives up what is behind it."""
    t = Trace(groups=2, windows=[None, 4], sentinels=[0])
    a = t.admit(1, "a", P + Q, [1, 2])
    other = Row("a", P + Q, (2, 1))
    t.alloc(2, "a", 0, group=1), t.alloc(1, "a", 1, group=1)
    t.schedule([a]), t.build([a]), t.build([other], group=1)
    t.mask([a], group=0), t.mask([other], window=4, group=1)
    t.event("StepDispatched"), t.write([a]), t.write([other], group=1)
    t.event("StepCompleted"), t.sample([a], {"a": 25})
    t.alloc(3, "a", 2, step=2)
    if behind is not None:
        t.release(2, "a", 0, 0, group=1), t.free(2, group=1)
    t.alloc(5, "a", 2, group=1)
    zero = decode("a", 25, (1, 2, 3), 8)
    one = decode("a", 25, (2 if behind is None else behind, 1, 5), 8)
    t.schedule([zero]), t.build([zero]), t.build([one], group=1)
    t.mask([zero], group=0), t.mask([one], window=4, group=1)
    t.event("StepDispatched"), t.write([zero]), t.write([one], group=1)
    t.event("StepCompleted"), t.sample([zero], {"a": 26})
    return t


@pytest.mark.parametrize("behind", [None, -1, 0])
def test_groups_with_their_own_blocks_and_a_trimmed_window(behind: int | None) -> None:
    t = grouped(behind)
    t.end()
    clean(t)


def test_a_trimmed_block_of_one_group_goes_to_another_request() -> None:
    t = grouped(-1)
    t.number = 3
    t.add("b", R)
    t.alloc(6, "b", 0), t.alloc(2, "b", 0, group=1)
    zero, one = Row("b", R, (6,)), Row("b", R, (2,))
    t.schedule([zero]), t.build([zero]), t.build([one], group=1)
    t.event("StepDispatched"), t.write([zero]), t.write([one], group=1)
    t.event("StepCompleted"), t.sample([zero], {"b": 35})
    t.end()
    clean(t)


def test_group_zero_and_no_group_are_the_same() -> None:
    t = Trace()
    a = t.admit(1, "a", P, [1])
    t.schedule([a]), t.build([a], group=0), t.mask([a]), t.event("StepDispatched")
    t.write([a], group=0), t.event("StepCompleted"), t.sample([a], {"a": 15})
    t.register(1, "k1", "a", P, group=0)
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1")
    t.alloc(2, "b", 1, group=0)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 16})
    t.finish("b")
    t.release(1, "b", 0, 1, group=0), t.release(2, "b", 1, 0), t.free(2, group=0)
    t.end()
    clean(t)


def test_releases_without_an_index() -> None:
    t = registered()
    t.alloc(2, "a", 1)
    t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.finish("a")
    t.release(2, "a", None, 0), t.free(2)
    t.release(1, "a", None, 0), t.free(1, cached=True)
    t.step(3, t.admit(3, "b", Q, [2]), sampled={"b": 25})
    t.end()
    clean(t)


def test_an_abort_before_the_first_step() -> None:
    t = registered()
    t.add("b", Q)
    t.alloc(3, "b", 0)
    t.event("AbortRequested", request="b")
    t.finish("b", "aborted")
    t.release(3, "b", 0, 0), t.free(3)
    t.add("c", R, step=2)
    t.event("AbortRequested", request="c")
    t.finish("c", "aborted")
    t.alloc(2, "a", 1)
    t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.end()
    clean(t)


def test_preemption_and_resumption_through_the_cache() -> None:
    t = registered()
    t.event("RequestPreempted", request="a", reason="pool full")
    t.release(1, "a", 0, 0), t.free(1, cached=True)
    t.step(2, t.admit(2, "b", Q, [2]), sampled={"b": 25})
    t.number = 3
    t.lookup("a", ["k1"], [1])
    t.share(1, "a", 0, 1, "k1"), t.alloc(4, "a", 1)
    t.step(3, Row("a", (15,), (1, 4), 4), sampled={"a": 16})
    t.end()
    clean(t)


def test_a_preempted_request_whose_blocks_others_got_and_gave_back() -> None:
    t = registered()
    t.event("RequestPreempted", request="a")
    t.release(1, "a", 0, 0), t.free(1, cached=True)
    t.unregister(1, "k1", "evicted")
    t.step(2, t.admit(2, "b", Q, [1]), sampled={"b": 25})
    t.leave("b", [1])
    t.number = 3
    t.alloc(1, "a", 0), t.alloc(2, "a", 1)
    t.step(3, Row("a", (*P, 15), (1, 2)), sampled={"a": 16})
    t.end()
    clean(t)


def test_a_name_that_comes_back_as_a_second_life() -> None:
    t = registered()
    t.leave("a", [1], cached=[1])
    t.add("a#2", (*P, 61))
    t.lookup("a#2", ["k1"], [1])
    t.share(1, "a#2", 0, 1, "k1"), t.alloc(2, "a#2", 1)
    t.step(2, Row("a#2", (61,), (1, 2), 4), sampled={"a#2": 16})
    t.end()
    clean(t)


def test_chunks_of_a_long_prompt_with_steps_of_no_tokens_between() -> None:
    t = Trace()
    t.admit(1, "a", P + Q, [1, 2])
    t.step(1, Row("a", P[:3], (1, 2)))
    t.step(2, Row("a", (), (1, 2), 3), without=["SlotsWritten"])
    t.step(3, Row("a", (P[3], *Q[:2]), (1, 2), 3))
    t.step(4, Row("a", Q[2:], (1, 2), 6), sampled={"a": 25})
    t.end()
    clean(t)


def test_a_step_scheduled_with_nothing_to_do() -> None:
    t = registered()
    t.event("StepScheduled", requests=[], computed=[], scheduled=[], phases=[])
    t.event("StepCompleted")
    t.end()
    clean(t)


def test_a_revised_request_goes_on_in_place() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51, 52), [1, 2]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    t.event("RequestRevised", 2, request="a", tokens_kept=5, tokens=[71, 72])
    t.step(2, Row("a", (71, 72), (1, 2), 5), sampled={"a": 16})
    t.add("b", (*P, 61), step=3)
    t.lookup("b", ["k1"], [1])
    t.share(1, "b", 0, 2, "k1"), t.alloc(3, "b", 1)
    t.step(3, Row("b", (61,), (1, 3), 4), sampled={"b": 16})
    t.end()
    clean(t)


def test_without_masks_or_decisions() -> None:
    t = registered()
    t.alloc(2, "a", 1)
    t.step(2, decode("a", 15, (1, 2), 4), without=["MaskBuilt"], sampled={"a": 16})
    t.end()
    clean(t)


def test_with_decisions() -> None:
    t = Trace()
    t.add("a", P, step=1)
    t.event("DecisionMade", decision="admit:a:0:0", about="admit", request="a", choice=True)
    t.event("DecisionMade", decision="acquire:a:0:0", about="acquire", request="a", choice=1)
    t.alloc(1, "a", 0, decision="acquire:a:0:0")
    t.step(1, Row("a", P, (1,)), sampled={"a": 15})
    t.end()
    clean(t)


def test_duplicate_keys_on_several_blocks() -> None:
    t = registered()
    t.step(2, t.admit(2, "c", P, [3]), sampled={"c": 15})
    t.register(3, "k1", "c", P)
    t.leave("a", [1], cached=[1])
    t.add("b", (*P, 61), step=3)
    t.lookup("b", ["k1"], [1])
    t.share(1, "b", 0, 1, "k1"), t.alloc(2, "b", 1)
    t.step(3, Row("b", (61,), (1, 2), 4), sampled={"b": 16})
    t.unregister(3, "k1", "evicted")
    t.add("d", (*P, 62), step=4)
    t.lookup("d", ["k1"], [1])
    t.share(1, "d", 0, 2, "k1"), t.alloc(4, "d", 1)
    t.step(4, Row("d", (62,), (1, 4), 4), sampled={"d": 16})
    t.end()
    clean(t)


def test_a_store_and_a_load_of_the_same_tokens() -> None:
    t = registered()
    t.event(
        "TransferStarted", transfer=1, direction="store", blocks=[1], keys=["k1"], host_blocks=[7]
    )
    t.event("TransferFinished", transfer=1, status="ok")
    t.leave("a", [1], cached=[1])
    t.unregister(1, "k1", "evicted")
    t.step(2, t.admit(2, "x", Q, [1]), sampled={"x": 25})
    t.add("b", (*P, 61), step=3)
    t.alloc(2, "b", 0), t.alloc(3, "b", 1)
    t.event("TransferStarted", transfer=2, direction="load", blocks=[2], keys=["k1"],
            host_blocks=[7], request="b")  # fmt: skip
    t.event("SlotsWritten", write="transfer", requests=["b"] * 4, positions=[0, 1, 2, 3],
            tokens=list(P), slots=[8, 9, 10, 11])  # fmt: skip
    t.event("TransferFinished", transfer=2, status="ok")
    t.step(3, Row("b", (61,), (2, 3), 4), sampled={"b": 16})
    t.end()
    clean(t)


def test_drafts_that_are_verified_and_rejected_and_written_over() -> None:
    t = registered()
    t.alloc(2, "a", 1)
    row = Row("a", (15, 81, 82), (1, 2), 4, "decode")
    t.schedule([row]), t.build([row]), t.mask([row]), t.event("StepDispatched")
    t.event("SlotsWritten", write="decode", requests=["a"], positions=[4], tokens=[15], slots=[8])
    t.event(
        "SlotsWritten",
        write="draft",
        requests=["a"] * 2,
        positions=[5, 6],
        tokens=[81, 82],
        slots=[9, 10],
    )
    t.event("StepCompleted")
    t.event("DraftVerified", request="a", proposed=[81, 82], first=5, accepted=1)
    t.event("TokensSampled", requests=["a", "a"], tokens=[81, 16], positions=[5, 6], rows=[0, 0])
    t.step(3, decode("a", 16, (1, 2), 6), sampled={"a": 17})
    t.alloc(3, "a", 2, step=4)
    t.step(4, decode("a", 17, (1, 2), 7), sampled={"a": 18})
    t.end()
    clean(t)


def test_an_epoch_that_changes_between_requests() -> None:
    t = registered()
    t.leave("a", [1], cached=[1])
    t.event("EpochChanged", 2, epoch=2, what="weights")
    t.unregister(1, "k1", "reset")
    t.add("b", P)
    t.lookup("b", ["k1"], [])
    t.alloc(2, "b", 0)
    t.step(2, Row("b", P, (2,)), sampled={"b": 15})
    t.register(2, "k1", "b", P)
    t.add("c", (*P, 61), step=3)
    t.share(2, "c", 0, 2, "k1"), t.alloc(3, "c", 1)
    t.step(3, Row("c", (61,), (2, 3), 4), sampled={"c": 16})
    t.end()
    clean(t)


def test_a_running_request_goes_on_over_an_epoch_change() -> None:
    t = registered()
    t.event("EpochChanged", 2, epoch=2, what="weights")
    t.alloc(2, "a", 1)
    t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.end()
    clean(t)


def test_a_step_without_its_dispatch_tells_nothing_wrong() -> None:
    """It is incomplete, but nothing is found."""
    t = registered()
    t.alloc(2, "a", 1)
    t.step(2, decode("a", 15, (1, 2), 4), without=["StepDispatched"], sampled={"a": 16})
    t.end()
    assert t.judged()["findings"] == []


def test_a_step_without_its_scheduling_tells_nothing_wrong() -> None:
    t = registered()
    t.alloc(2, "a", 1)
    t.step(2, decode("a", 15, (1, 2), 4), without=["StepScheduled"], sampled={"a": 16})
    t.end()
    assert t.judged()["findings"] == []


def test_unfinished_requests_at_the_end_with_a_step_in_flight() -> None:
    t = registered()
    t.alloc(2, "a", 1)
    row = decode("a", 15, (1, 2), 4)
    t.schedule([row]), t.build([row]), t.mask([row]), t.event("StepDispatched")
    t.end()
    assert t.judged()["findings"] == []


def test_a_fork_before_its_parents_own_step() -> None:
    """Two samples of one prompt: the child is forked while the prompt is still to be computed."""
    t = Trace()
    t.admit(1, "a", (*P, 51), [1, 2])
    t.add("b", (*P, 51), parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=5)
    t.share(1, "b", 0, 2, None), t.share(2, "b", 1, 2, None)
    t.step(1, Row("a", (*P, 51), (1, 2)), sampled={"a": 15})
    t.event("RequestRevised", 2, request="b", tokens_kept=5, tokens=[16])
    t.alloc(3, "b", 1), t.copy(2, 3, 1), t.release(2, "b", 1, 1)
    t.step(2, decode("a", 15, (1, 2), 5), decode("b", 16, (1, 3), 5), sampled={"a": 17, "b": 18})
    t.end()
    clean(t)


def test_blocks_handed_out_beyond_what_the_step_needs() -> None:
    """Lookahead slots: more blocks are held, and listed, than the length reaches."""
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1, 2, 3]), sampled={"a": 15})
    t.step(2, decode("a", 15, (1, 2, 3), 4), sampled={"a": 16})
    t.end()
    clean(t)


def test_tables_padded_with_holes_to_one_width() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", P + Q, [2, 3])
    t.step(1, a, b, built={"block_tables": [[1, -1, -1], [2, 3, -1]]}, sampled={"a": 15, "b": 25})
    t.end()
    clean(t)


def test_a_prompt_computed_again_in_full_by_a_twin() -> None:
    """No cache: equal prompts in their own blocks."""
    t = registered()
    t.step(2, t.admit(2, "b", P, [2]), sampled={"b": 15})
    t.end()
    clean(t)


def test_a_full_hit_that_computes_its_last_block_anew() -> None:
    t = registered()
    t.add("b", P)
    t.lookup("b", ["k1"], [])
    t.alloc(2, "b", 0)
    t.step(2, Row("b", P, (2,)), sampled={"b": 15})
    t.register(2, "k1", "b", P)
    t.end()
    clean(t)


def test_keys_may_be_numbers() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.event("BlockRegistered", block=1, key=123456789, request="a", tokens=list(P))
    t.add("b", (*P, 61), step=2)
    t.event("BlockShared", block=1, request="b", index=0, ref_count=2, key=123456789)
    t.alloc(2, "b", 1)
    t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 16})
    t.end()
    clean(t)


def test_an_eviction_inside_an_allocation_comes_before_it() -> None:
    t = registered()
    t.leave("a", [1], cached=[1])
    t.add("b", Q)
    t.unregister(1, "k1", "evicted")
    t.alloc(1, "b", 0)
    t.step(2, Row("b", Q, (1,)), sampled={"b": 25})
    t.end()
    clean(t)


def test_two_builds_of_a_buffer_before_dispatch_count_once() -> None:
    """The last one with a buffer before dispatch counts."""
    t = Trace()
    a = t.admit(1, "a", P, [1])
    t.schedule([a])
    t.build([a], buffer="x", stamp=1, seq_lens=[99])
    t.build([a], buffer="x", stamp=2)
    t.mask([a]), t.event("StepDispatched"), t.write([a]), t.event("StepCompleted", read=["x", 2])
    t.sample([a], {"a": 15})
    t.end()
    clean(t)


def test_micro_batches_in_buffers_of_their_own() -> None:
    t = Trace()
    a, b = t.admit(1, "a", P, [1]), t.admit(1, "b", Q, [2])
    t.schedule([a, b])
    t.build([a], buffer="x", stamp=1), t.build([b], buffer="y", stamp=1)
    t.event("StepDispatched"), t.write([a, b]), t.event("StepCompleted")
    t.end()
    clean(t)


def test_unknown_fields_and_times_change_nothing() -> None:
    t = registered()
    for number, line in enumerate(t.lines):
        del line["seq"]
        line.update(t_ns=number * 10, rank=0, colour="blue")
    t.end()
    clean(t)


def test_a_hit_behind_a_window_gives_null_blocks_for_what_it_does_not_need() -> None:
    """vLLM fills the places before the window with the null block, in lookup and table."""
    t = Trace(sentinels=[0], windows=[4])
    t.step(1, t.admit(1, "a", P + Q + R, [1, 2, 3]), window=4, sampled={"a": 15})
    t.register(1, "k1", "a", P), t.register(2, "k2", "a", Q, "k1")
    t.register(3, "k3", "a", R, "k2")
    t.add("b", (*P, *Q, *R, 61), step=2)
    t.lookup("b", ["k1", "k2", "k3"], [0, 0, 3])
    t.share(3, "b", 2, 2, "k3"), t.alloc(4, "b", 3)
    t.step(2, Row("b", (61,), (0, 0, 3, 4), 12), window=4, sampled={"b": 62})
    t.end()
    clean(t)


def test_a_fork_whose_first_token_comes_from_its_parents_row() -> None:
    """Several samples of one prompt: one row gives the logits for all of them."""
    t = Trace()
    a = t.admit(1, "a", (*P, 51), [1, 2])
    t.add("b", (*P, 51), parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=5)
    t.share(1, "b", 0, 2, None), t.share(2, "b", 1, 2, None)
    t.step(1, a)
    t.event("TokensSampled", requests=["a", "b"], tokens=[15, 16], positions=[5, 5], rows=[0, 0])
    t.alloc(3, "b", 1, step=2), t.copy(2, 3, 1), t.release(2, "b", 1, 1)
    t.step(2, decode("a", 15, (1, 2), 5), decode("b", 16, (1, 3), 5), sampled={"a": 17, "b": 18})
    t.end()
    clean(t)


def test_chunks_of_a_block_registered_while_scheduling_are_first_writes() -> None:
    t = Trace(publish="scheduled")
    t.admit(1, "a", P, [1])
    t.register(1, "k1", "a", P)
    t.step(1, Row("a", P[:2], (1,)))
    t.add("b", (*P, 61), step=2)
    t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
    t.step(2, Row("a", P[2:], (1,), 2), Row("b", (61,), (1, 2), 4), sampled={"a": 15, "b": 16})
    t.end()
    clean(t)


def test_a_parent_writes_on_in_place_once_its_child_has_copied() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", (*P, 51), [1, 2]), sampled={"a": 15})
    t.add("b", (*P, 51), step=2, parent="a")
    t.event("RequestForked", request="b", parent="a", tokens=5)
    t.share(1, "b", 0, 2, None), t.share(2, "b", 1, 2, None)
    t.event("RequestRevised", request="b", tokens_kept=5, tokens=[16])
    t.alloc(3, "b", 1), t.copy(2, 3, 1), t.release(2, "b", 1, 1)
    t.step(2, decode("a", 15, (1, 2), 5), decode("b", 16, (1, 3), 5), sampled={"a": 17, "b": 18})
    t.finish("b")
    t.release(3, "b", 1, 0), t.free(3), t.release(1, "b", 0, 1)
    t.step(3, decode("a", 17, (1, 2), 6), sampled={"a": 19})
    t.end()
    clean(t)


def test_a_request_that_is_preempted_after_it_was_scheduled_has_no_row() -> None:
    t = registered()
    t.step(2, t.admit(2, "b", Q, [2]), sampled={"b": 25})
    t.number = 3
    t.alloc(3, "a", 1), t.alloc(4, "b", 1)
    a, b = decode("a", 15, (1, 3), 4), decode("b", 25, (2, 4), 4)
    t.schedule([a, b])
    t.event("RequestPreempted", request="b")
    t.release(4, "b", 1, 0), t.free(4), t.release(2, "b", 0, 0), t.free(2)
    t.build([a]), t.mask([a]), t.event("StepDispatched"), t.write([a]), t.event("StepCompleted")
    t.end()
    clean(t)


def test_a_block_given_up_behind_the_window_and_handed_out_again_to_the_same_request() -> None:
    """The entry behind the window stays in the table, and is a block that the request holds."""
    t = Trace(windows=[4])
    t.step(1, t.admit(1, "a", P + Q, [1, 2]), window=4, sampled={"a": 15})
    t.number = 2
    t.release(1, "a", 0, 0), t.free(1), t.alloc(1, "a", 2)
    t.step(2, decode("a", 15, (1, 2, 1), 8), keys="pool", window=4, sampled={"a": 16})
    t.end()
    clean(t)
