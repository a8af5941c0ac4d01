"""Counts, tables, shares and the index: each rule catches its fault and blames the right event."""

from __future__ import annotations

import pytest
from builders import Trace, at
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockShared,
    BlockUnregistered,
    InputsBuilt,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    SlotsWritten,
    StepScheduled,
)
from scenes import (
    assert_clean,
    forked,
    judged,
    preempted,
    reused_block,
    root_of,
    same_step_share,
    shared_prefix,
    two_decoding,
)


@pytest.mark.parametrize(
    "scene", [shared_prefix, reused_block, two_decoding, preempted, forked, same_step_share]
)
def test_sound_runs_are_clean(scene):
    assert_clean(scene())


# ref-count


def test_a_share_that_does_not_count_is_a_count_fault_of_the_share():
    trace = shared_prefix()
    culprit = trace.edit(trace.find(BlockShared), ref_count=1)
    report = judged(trace)
    root = root_of(report)
    assert (root.check, root.fault_class, root.culprit_seq) == ("ref-count", "F06", culprit)
    assert (root.block, root.victim, root.expected, root.actual) == (1, "B", 2, 1)
    assert report.verdict == "violated"
    assert len(report.findings) == 1


def test_freeing_a_block_that_another_holds_leaks_once_it_is_handed_out():
    trace = Trace(num_blocks=4)
    trace.next_step()
    trace.add("A", range(10, 14))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 4), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.add("B", [*range(10, 14), 50])
    trace.share("B", 0, 0, "k0")
    trace.allocate("B", 1, 1)
    trace.step(("B", 4, 1), sample={"B": 91})
    trace.finish("A")
    assert_after_end(trace)
    culprit = trace.free(0)
    trace.next_step()
    trace.unregister(0)
    trace.add("C", range(30, 34))
    trace.emit(BlockAllocated(block=0, request="C", index=0))
    trace.tables[0, "C"] = {0: 0}
    trace.step(("B", 5, 1), ("C", 0, 4), sample={"B": 92, "C": 93})
    trace.end()
    report = judged(trace)
    root, leak = report.findings
    assert (root.check, root.root, root.culprit_seq, root.victim) == (
        "ref-count",
        True,
        culprit,
        "B",
    )
    assert (leak.check, leak.fault_class, leak.root) == ("foreign-read", "F06", False)
    assert (leak.culprit_seq, leak.victim, leak.source, leak.slot) == (culprit, "B", "C", 0)
    assert report.verdict == "contaminated"


def assert_after_end(trace: Trace) -> None:
    """The trace so far is sound, were it to end here."""
    trace.end()
    assert_clean(trace)
    trace.events.pop()


def test_a_release_by_somebody_who_holds_nothing_is_a_count_fault():
    trace = shared_prefix()
    release = trace.find(BlockReleased)
    culprit = trace.insert(release + 1, BlockReleased(block=2, request="A", index=1, ref_count=-1))
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.actual) == ("ref-count", culprit, -1)


def test_a_block_freed_twice_is_the_second_frees_fault():
    trace = two_decoding()
    culprit = trace.insert(trace.find(BlockFreed) + 1, BlockFreed(block=1, cached=False))
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.block) == ("ref-count", culprit, 1)


def test_a_block_handed_to_two_requests_is_the_second_allocations_fault():
    trace = two_decoding(b_starts_at=0)
    culprit = trace.find(BlockAllocated, 2)
    report = judged(trace)
    root = root_of(report)
    assert {f.check for f in report.findings} == {"ref-count", "foreign-read"}
    assert root.check == "ref-count"
    assert (root.culprit_seq, root.block, root.victim) == (culprit, 0, "A")


def test_a_count_that_reached_zero_and_was_not_freed_blames_the_release():
    trace = two_decoding()
    freed = trace.find(BlockFreed)
    trace.drop(freed)
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.block) == ("ref-count", freed - 1, 1)


def test_what_a_finished_request_keeps_blames_its_finish_as_one_finding():
    trace = two_decoding()
    culprit = trace.find(RequestFinished, 0)
    for _ in range(4):
        trace.drop(culprit + 1)
    report = judged(trace)
    root = root_of(report)
    assert (root.check, root.culprit_seq, root.victim) == ("ref-count", culprit, "A")
    assert len(report.findings) == 1


def test_an_abort_that_frees_shared_blocks_is_one_finding_named_by_its_first_event():
    trace = Trace(num_blocks=6)
    trace.next_step()
    trace.add("A", range(10, 18))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 8), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.register("A", 1, "k1", "k0")
    trace.next_step()
    trace.add("B", [*range(10, 18), 50])
    trace.share("B", 0, 0, "k0")
    trace.share("B", 1, 1, "k1")
    trace.allocate("B", 2, 2)
    trace.step(("B", 8, 1), sample={"B": 91})
    trace.emit(RequestFinished(request="A", reason="aborted"))
    trace.release("A", 1)
    first = trace.free(1)
    trace.release("A", 0)
    second = trace.free(0)
    trace.end()
    report = judged(trace)
    (finding,) = report.findings
    assert (finding.root, finding.culprit_seq, finding.block) == (True, first, 1)
    assert finding.culprits == (first, second)


# dangling-table


def test_a_table_that_keeps_a_released_block_blames_the_release():
    trace = preempted()
    culprit = trace.find(BlockReleased, 0)
    build = trace.find(InputsBuilt, 2)
    tables = trace.events[build][1].block_tables
    slots = trace.events[build][1].slot_mapping
    trace.edit(
        build,
        block_tables=at(tables, 0, (4, 1)),
        slot_mapping=(*slots[:4], 4, 5, *slots[6:]),
    )
    written = trace.find(SlotsWritten, 2)
    trace.edit(written, slots=(*slots[:4], 4, 5, *slots[6:]))
    report = judged(trace)
    root = root_of(report)
    assert (root.check, root.fault_class, root.culprit_seq) == ("dangling-table", "F07", culprit)
    assert (root.block, root.row, root.victim, root.source) == (1, 0, "A", "B")
    (leak,) = [f for f in report.findings if f.check == "foreign-read"]
    assert (leak.victim, leak.source, leak.culprit_seq, leak.fault_class) == (
        "B",
        "A",
        culprit,
        "F07",
    )


def test_a_table_that_lists_what_was_never_held_blames_the_build():
    trace = two_decoding()
    build = trace.find(InputsBuilt, 1)
    trace.edit(build, block_tables=((0, 6), (2, 3)), slot_mapping=(25, 13))
    trace.edit(trace.find(SlotsWritten, 1), slots=(25, 13))
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.block) == ("dangling-table", build, 6)
    assert root.decision == "table:A:6:0"


def test_a_length_beyond_the_blocks_held_is_a_dangling_table():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 14))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 4), sample={"A": 90})
    trace.finish("A")
    trace.end()
    assert_clean(trace)
    build = trace.find(InputsBuilt)
    trace.edit(build, seq_lens=(5,), block_tables=((0, 3),))
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.expected, root.actual) == (
        "dangling-table",
        build,
        4,
        5,
    )


def test_entries_past_the_end_may_be_holes_sentinels_or_held():
    trace = two_decoding(sentinels=(7,))
    build = trace.find(InputsBuilt)
    trace.edit(build, block_tables=((0, 1, 7), (2, 3, -1, -1)))
    assert_clean(trace)
    trace.edit(build, block_tables=((0, 1, 6), (2, 3)))
    assert root_of(judged(trace)).check == "dangling-table"


# identity


def test_a_share_whose_third_token_differs_blames_the_share_and_carries_the_leak():
    trace = shared_prefix([10, 11, 99, 13, 50, 51])
    culprit = trace.find(BlockShared)
    report = judged(trace)
    root, leak = report.findings
    assert (root.check, root.fault_class, root.root) == ("identity", "F01", True)
    assert (root.culprit_seq, root.block, root.slot) == (culprit, 1, 6)
    assert (root.expected, root.actual, root.victim, root.source) == (99, 12, "B", "A")
    assert (leak.check, leak.fault_class, leak.culprit_seq) == ("foreign-read", "F01", culprit)
    assert (leak.root, leak.victim, leak.source) == (False, "B", "A")
    assert report.verdict == "contaminated"


def test_a_block_at_another_index_is_not_the_same_content():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 18))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 8), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.register("A", 1, "k1", "k0")
    trace.next_step()
    trace.add("B", [*range(14, 18), 50])
    culprit = trace.share("B", 0, 1, "k1")
    trace.allocate("B", 1, 2)
    trace.step(("B", 4, 1), sample={"B": 91})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.slot) == ("identity", culprit, 4)


def test_tenants_share_only_where_sharing_is_global():
    trace = shared_prefix(sharing="tenant")
    assert_clean(trace)
    trace.edit(trace.find(RequestAdded, 1), tenant="two")
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq) == ("identity", trace.find(BlockShared))
    assert (root.expected, root.actual) == ("two", "one")
    same = shared_prefix(sharing="global")
    same.edit(same.find(RequestAdded, 1), tenant="two")
    assert_clean(same)


@pytest.mark.parametrize(
    ("field", "value"), [("adapter", "lora"), ("extra_keys", ["image"]), ("extra_keys", [[2, "i"]])]
)
def test_adapters_and_extra_keys_below_the_blocks_end_must_agree(field, value):
    trace = shared_prefix()
    trace.edit(trace.find(RequestAdded, 1), **{field: value})
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq) == ("identity", trace.find(BlockShared))


def test_extra_keys_after_the_block_are_no_matter():
    trace = shared_prefix()
    trace.edit(trace.find(RequestAdded, 1), extra_keys=[[4, "image"]])
    assert_clean(trace)


def test_a_registered_parent_that_is_not_the_block_before_blames_the_share():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 18))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 8), sample={"A": 90})
    trace.register("A", 0, "k0")
    registered = trace.register("A", 1, "k1", "k0")
    trace.next_step()
    trace.add("B", [*range(10, 18), 50])
    trace.share("B", 0, 0, "k0")
    culprit = trace.share("B", 1, 1, "k1")
    trace.allocate("B", 2, 2)
    trace.step(("B", 8, 1), sample={"B": 91})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    assert_clean(trace)
    trace.edit(registered, parent_key="other")
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.actual) == ("identity", culprit, "other")
    trace.edit(registered, parent_key="k1")
    assert root_of(judged(trace)).check == "identity"


def test_a_same_step_share_of_other_content_is_caught_when_it_is_written():
    trace = same_step_share()
    trace.edit(trace.find(RequestAdded, 1), prompt_tokens=(10, 11, 12, 77, 50))
    report = judged(trace)
    root = root_of(report)
    assert (root.check, root.culprit_seq) == ("identity", trace.find(BlockShared))
    assert report.verdict == "contaminated"


# stale-index


def test_a_reuse_that_keeps_the_key_blames_the_allocation():
    trace = reused_block()
    trace.drop(trace.find(BlockUnregistered))
    report = judged(trace)
    root = root_of(report)
    assert (root.check, root.fault_class) == ("stale-index", "F02")
    assert root.culprit_seq == trace.find(BlockAllocated, 2)
    assert (root.block, report.verdict) == (0, "violated")


def test_a_hit_on_a_kept_key_leaks_and_carries_the_allocation():
    trace = reused_block()
    culprit = trace.find(BlockAllocated, 2) - 1
    trace.drop(trace.find(BlockUnregistered))
    third = trace.find(BlockAllocated, 4)
    trace.events[third] = (
        3,
        BlockShared(block=0, request="C", index=0, ref_count=1, key="k0"),
    )
    trace.edit(trace.find(StepScheduled, 2), computed=(4,), scheduled=(1,))
    build = trace.find(InputsBuilt, 2)
    trace.edit(build, tokens=(14,), query_lens=(1,), positions=(4,), slot_mapping=(12,))
    trace.edit(
        trace.find(SlotsWritten, 2), requests=("C",), positions=(4,), tokens=(14,), slots=(12,)
    )
    report = judged(trace)
    root, leak = report.findings
    assert (root.check, root.culprit_seq) == ("stale-index", culprit)
    assert (root.victim, root.source) == ("C", "B")
    assert (leak.check, leak.fault_class, leak.culprit_seq) == ("foreign-read", "F02", culprit)
    assert (leak.victim, leak.source) == ("C", "B")


def test_a_share_under_a_dead_key_blames_the_share():
    trace = shared_prefix()
    registered = trace.find(BlockRegistered)
    trace.insert(registered + 1, BlockUnregistered(block=1, key="k0", reason="evicted"))
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq, root.victim) == (
        "stale-index",
        trace.find(BlockShared),
        "B",
    )


def test_a_lookup_that_gives_a_dead_block_is_reported_even_if_nobody_shares_it():
    trace = reused_block()
    added = trace.find(RequestAdded, 2)
    culprit = trace.insert(
        added + 1, PrefixLookedUp(request="C", keys=("k0",), blocks=(0,), hit_tokens=4)
    )
    root = root_of(judged(trace))
    assert (root.check, root.culprit_seq) == ("stale-index", culprit)
