"""The memory account of small runs worked out by hand, and of recorded ones against the fold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from builders import Row, Trace, pad
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockScrubbed,
    Envelope,
    EpochChanged,
    RequestAdded,
    RequestRevised,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    StepScheduled,
)
from kvrewind.replay.memory_account import MemoryAccount
from kvrewind.replay.memory_report import Ask, Memory

GROUP = {"layers": [0, 1], "kv_heads": 2, "head_dim": 8}
"""128 bytes a token in float16, 512 a block of four."""


def account(events: Iterable[Envelope], **ask: int) -> Memory:
    counted = MemoryAccount()
    for envelope in events:
        counted.see(envelope)
    return counted.report(Ask(**ask))


def of(trace: Trace, **ask: int) -> Memory:
    return account(trace.envelopes(), **ask)


def new(*groups: dict[str, Any], **more: Any) -> Trace:
    trace = Trace(**more)
    trace.edit(0, dtype="float16", groups=list(groups or (GROUP,)))
    return trace


def four_steps() -> Trace:
    """A (6 tokens), then B, which shares A's first block; A goes, B goes, C (3 tokens) comes.

    step  held  cached  shared  written  (blocks, and slots of those held)
       1     2       0       0        6
       2     3       0       1        8
       3     2       0       0        6
       4     1       1       0        3
    """
    trace = new(max_num_seqs=3)
    trace.next_step()
    trace.add("A", range(10, 16))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 6), sample={"A": 70})
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.add("B", [10, 11, 12, 13, 20])
    trace.share("B", 0, 0, "k0")
    trace.allocate("B", 1, 2)
    trace.step(("A", 6, 1), ("B", 4, 1), sample={"A": 71, "B": 72})
    trace.finish("A")
    trace.next_step()
    trace.step(("B", 5, 1), sample={"B": 73})
    trace.finish("B")
    trace.next_step()
    trace.add("C", [30, 31, 32])
    trace.allocate("C", 0, 3)
    trace.step(("C", 0, 3))
    trace.finish("C")
    trace.end()
    return trace


def test_the_pool_is_followed_from_step_to_step() -> None:
    memory = of(four_steps())
    assert (memory.bytes_per_token, memory.bytes_per_block, memory.steps) == (128, 512, 4)
    assert memory.pool is not None and memory.held is not None and memory.cached is not None
    assert (memory.pool.blocks, memory.pool.tokens, memory.pool.bytes) == (8, 32, 4096)
    assert memory.pool.never_used_blocks == 4
    assert (memory.held.mean_blocks, memory.held.mean_bytes, memory.held.mean_share) == (
        2.0,
        1024.0,
        0.25,
    )
    assert (memory.held.peak_blocks, memory.held.peak_bytes, memory.held.peak_share) == (
        3,
        1536,
        3 / 8,
    )
    assert memory.held.peak_step == 2
    assert (memory.cached.mean_blocks, memory.cached.peak_blocks) == (0.25, 1)
    assert memory.cached.peak_step == 4
    assert memory.free is not None
    assert (memory.free.mean_blocks, memory.free.mean_bytes) == (8 - 2.25, 512 * (8 - 2.25))
    assert memory.free.mean_share == (8 - 2.25) / 8
    assert (memory.free.least_blocks, memory.free.least_step) == (5, 2)


def test_slots_held_and_not_written_are_internal_fragmentation() -> None:
    found = of(four_steps()).fragmentation
    assert found is not None
    assert found.mean_slots == (2 + 4 + 2 + 1) / 4
    assert found.mean_bytes == 128 * 9 / 4
    assert found.mean_share == 9 / 32


def test_holders_beyond_the_first_are_blocks_that_sharing_saved() -> None:
    saved = of(four_steps()).saved
    assert saved is not None
    assert (saved.mean_blocks, saved.mean_bytes) == (0.25, 128.0)
    assert (saved.peak_blocks, saved.peak_bytes, saved.peak_step) == (1, 512, 2)


def test_contiguous_allocation_reserves_each_requests_longest_while_it_lives() -> None:
    """22, 22 + 21, 21 and 19 tokens, of which 6, 7 + 5, 6 and 3 are there: nothing is shared."""
    longest = of(four_steps()).contiguous.longest
    assert longest is not None and longest.length is None
    assert (longest.mean_tokens, longest.peak_tokens, longest.peak_step) == (105 / 4, 43, 2)
    assert (longest.mean_bytes, longest.peak_bytes) == (128 * 105 / 4, 128 * 43)
    assert longest.mean_wasted_bytes == 128 * (105 - 27) / 4
    assert longest.mean_wasted_share == (105 - 27) / 105
    assert longest.mean_times_held == 105 / 32
    assert longest.peak_times_held == 43 / 12


def test_contiguous_allocation_would_write_a_block_once_for_each_that_shares_it() -> None:
    """B shares the block in the very step in which A writes it."""
    trace = new()
    trace.next_step()
    for name in "AB":
        trace.add(name, range(4))
    trace.allocate("A", 0, 0)
    trace.share("B", 0, 0)
    trace.step(("A", 0, 4))
    longest = of(trace).contiguous.longest
    assert longest is not None and longest.mean_tokens == 40
    assert longest.mean_wasted_share == (40 - 4 - 4) / 40


def test_a_request_whose_only_block_was_handed_to_another_reserves_nothing() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(4))
    trace.add("B", range(3))
    trace.allocate("A", 0, 0)
    trace.allocate("B", 0, 0)
    trace.step(("B", 0, 3))
    longest = of(trace).contiguous.longest
    assert longest is not None and longest.mean_tokens == 19


def test_contiguous_allocation_may_reserve_the_models_context_for_each() -> None:
    context = of(four_steps(), context=100).contiguous.context
    assert context is not None and context.length == 100
    assert (context.mean_tokens, context.peak_tokens, context.peak_step) == (125.0, 200, 2)
    assert context.mean_wasted_share == (500 - 27) / 500
    assert context.mean_times_held == 500 / 32


def test_the_context_is_asked_for_where_the_trace_does_not_tell_it() -> None:
    trace = four_steps()
    assert of(trace).contiguous.context is None
    assert "--context" in of(trace).missing[-1]
    trace.edit(0, config={"max_positions": 50})
    told = of(trace)
    assert told.contiguous.context is not None and told.contiguous.context.length == 50
    assert told.missing == ()


def test_what_is_needed_is_worked_out_for_the_runs_own_requests_or_those_asked_for() -> None:
    """The longest is A, with 8 tokens (6, and two sampled)."""
    own, asked = of(four_steps()).need, of(four_steps(), requests=10, length=9).need
    assert own is not None and asked is not None
    assert (own.requests, own.length, own.bytes_per_request, own.bytes) == (3, 8, 1024, 3072)
    assert (own.blocks_per_request, own.blocks, own.block_bytes, own.fit) == (2, 6, 3072, 4)
    assert (asked.bytes, asked.blocks, asked.block_bytes, asked.fit) == (11520, 30, 15360, 2)


def test_without_max_num_seqs_the_most_at_one_time_are_the_runs_own() -> None:
    trace = four_steps()
    trace.edit(0, config={})
    need = of(trace).need
    assert need is not None and need.requests == 2


def windowed() -> Trace:
    """One request of 8, then 9 tokens, in a full group and in one with a window of 4.

    Bytes a block: 128 and 256. Step 1 holds 2 and 2 blocks, all written; step 2 holds 3 and 2,
    three slots of the last not written.
    """
    full = {"layers": [0], "kv_heads": 1, "head_dim": 8}
    trace = new(full, {"layers": [1, 2], "kv_heads": 1, "head_dim": 8, "window": 4})
    trace.next_step()
    trace.add("A", range(10, 18))
    for index in (0, 1):
        trace.allocate("A", index, index)
        trace.allocate("A", index, index, group=1)
    both_groups(trace, Row("A", 0, 8))
    trace.sample([Row("A", 0, 8)], {"A": 70})
    trace.next_step()
    trace.release("A", 0, group=1)
    trace.allocate("A", 2, 2)
    trace.allocate("A", 2, 2, group=1)
    both_groups(trace, Row("A", 8, 1))
    return trace


def both_groups(trace: Trace, row: Row) -> None:
    trace.schedule(row)
    trace.build(row)
    trace.build(row, group=1, block_tables=((),))
    trace.emit(StepDispatched())
    trace.write(row)
    trace.write(row, group=1)
    trace.emit(StepCompleted())


def test_kv_groups_count_with_their_own_bytes_and_windows() -> None:
    memory = of(windowed(), context=1000)
    assert [g.bytes_per_block for g in memory.groups] == [128, 256]
    assert (memory.bytes_per_token, memory.bytes_per_block) == (96, 384)
    assert memory.pool is not None and memory.held is not None
    assert memory.pool.bytes == 8 * 384
    assert memory.pool.never_used_blocks == 16 - 6
    assert memory.held.mean_bytes == (2 * 128 + 2 * 256 + 3 * 128 + 2 * 256) / 2
    assert (memory.held.peak_blocks, memory.held.peak_bytes) == (5, 896)
    assert memory.free is not None and memory.free.least_blocks == 11
    assert memory.free.mean_bytes == 8 * 384 - memory.held.mean_bytes
    assert memory.fragmentation is not None
    assert memory.fragmentation.mean_slots == 6 / 2
    assert memory.fragmentation.mean_bytes == (3 * 32 + 3 * 64) / 2


def test_contiguous_allocation_reserves_a_windows_worth_where_there_is_a_window() -> None:
    """24 tokens in the full group, 4 in the other; there are 8, then 9, and 4."""
    contiguous = of(windowed(), context=1000).contiguous
    assert contiguous.longest is not None and contiguous.context is not None
    assert contiguous.longest.mean_tokens == 24
    assert contiguous.longest.mean_bytes == 24 * 32 + 4 * 64
    assert contiguous.longest.mean_wasted_bytes == (24 * 2 - 8 - 9) * 32 / 2
    assert contiguous.context.mean_bytes == 1000 * 32 + 4 * 64


def test_a_preempted_request_reserves_nothing_until_it_is_back() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(4))
    trace.allocate("A", 0, 5)
    trace.step(("A", 0, 4))
    trace.give_up("A")
    trace.next_step()
    trace.add("B", range(2))
    trace.allocate("B", 0, 6)
    trace.step(("B", 0, 2))
    trace.next_step()
    trace.allocate("A", 0, 5)
    trace.step(("A", 0, 4), ("B", 1, 1))
    longest = of(trace).contiguous.longest
    assert longest is not None
    assert longest.mean_tokens == (20 + 18 + 38) / 3
    assert longest.peak_step == 3


def test_a_revised_request_reserves_what_it_has_grown_to() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(4))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 4))
    trace.emit(RequestRevised(request="A", tokens_kept=4, tokens=tuple(range(30))))
    trace.next_step()
    trace.step(("A", 3, 1))
    memory = of(trace)
    assert memory.contiguous.longest is not None and memory.need is not None
    assert memory.contiguous.longest.mean_tokens == (20 + 34) / 2
    assert memory.need.length == 34


def test_a_block_whose_tokens_were_revised_away_is_not_cached_afterwards() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(8))
    for index in (0, 1):
        trace.allocate("A", index, 5 + index)
    trace.step(("A", 0, 8))
    for index in (0, 1):
        trace.register("A", index, f"k{index}")
    trace.emit(RequestRevised(request="A", tokens_kept=5))
    trace.finish("A")
    trace.next_step()
    trace.add("B", range(2))
    trace.allocate("B", 0, 0)
    trace.step(("B", 0, 2))
    cached = of(trace).cached
    assert cached is not None and (cached.peak_blocks, cached.peak_step) == (1, 2)


def test_a_copy_writes_and_a_scrub_or_a_new_pool_unwrites() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(4))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 3))  # 1 of 4 slots is not written
    trace.next_step()
    trace.add("B", range(4))
    trace.allocate("B", 0, 1)
    trace.emit(BlockCopied(source=0, destination=1, slots=2))
    trace.step(("A", 3, 1))  # 2 of 8
    trace.next_step()
    trace.emit(BlockScrubbed(block=0, how="nan"))
    trace.step(("A", 3, 1))  # 3 + 2
    trace.next_step()
    trace.emit(EpochChanged(epoch="2", what="pool"))
    trace.step(("A", 3, 1))  # 3 + 4
    found = of(trace).fragmentation
    assert found is not None and found.mean_slots == (1 + 2 + 5 + 7) / 4


def test_pads_and_sentinels_hold_no_tokens() -> None:
    trace = new(sentinels=(7,))
    trace.next_step()
    trace.add("A", range(4))
    trace.allocate("A", 0, 0)
    trace.share("A", 1, 7)
    trace.step(("A", 0, 3), pad())
    trace.emit(SlotsWritten(write="pad", requests=(None,), positions=(0,), tokens=(0,), slots=(3,)))
    trace.emit(StepCompleted())
    memory = of(trace)
    assert memory.held is not None and memory.fragmentation is not None and memory.pool is not None
    assert (memory.held.peak_blocks, memory.fragmentation.mean_slots) == (1, 1)
    assert (memory.pool.blocks, memory.pool.sentinels) == (7, 1)
    assert memory.held.peak_share == 1 / 7


def test_a_step_counts_with_its_writes_also_where_they_are_logged_behind_its_completion() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(4))
    trace.allocate("A", 0, 0)
    row = Row("A", 0, 4)
    trace.schedule(row)
    trace.emit(StepCompleted())
    trace.write(row)
    found = of(trace).fragmentation
    assert found is not None and found.mean_slots == 0


def test_an_event_far_too_late_does_not_count_its_step_again() -> None:
    trace = four_steps()
    for _ in range(10):
        trace.next_step()
        trace.emit(StepCompleted())
    assert of(trace).steps == 14
    trace.emit(StepCompleted(), step=1)
    assert of(trace).steps == 14


def test_steps_that_overlap_count_once_each() -> None:
    trace = new()
    trace.next_step()
    trace.add("A", range(6))
    trace.allocate("A", 0, 0)
    trace.schedule(Row("A", 0, 4))
    trace.next_step()
    trace.allocate("A", 1, 1)
    trace.schedule(Row("A", 4, 2))
    trace.write(Row("A", 0, 4), step=1)
    trace.emit(StepCompleted(), step=1)
    trace.write(Row("A", 4, 2), step=2)
    trace.emit(StepCompleted(), step=2)
    memory = of(trace)
    assert memory.steps == 2
    assert memory.held is not None and memory.fragmentation is not None
    assert memory.held.mean_blocks == 2.0
    assert memory.fragmentation.mean_slots == (4 + 2) / 2


# --- traces that say less ---------------------------------------------------------------------


def test_without_a_header_blocks_are_counted_and_bytes_are_not() -> None:
    trace = four_steps()
    trace.drop(0)
    memory = of(trace)
    assert memory.held is not None and memory.held.peak_blocks == 3
    assert (memory.held.peak_bytes, memory.held.peak_share, memory.pool) == (None, None, None)
    assert (memory.fragmentation, memory.need) == (None, None)
    assert "RunStarted" in memory.missing[0]


def test_without_kv_heads_shares_are_told_and_bytes_are_not() -> None:
    trace = four_steps()
    trace.edit(0, groups=[GROUP | {"kv_heads": 0}])
    memory = of(trace)
    assert memory.held is not None and memory.fragmentation is not None
    assert (memory.held.mean_bytes, memory.held.mean_share) == (None, 0.25)
    assert (memory.fragmentation.mean_slots, memory.fragmentation.mean_share) == (9 / 4, 9 / 32)
    assert memory.contiguous.longest is not None
    assert memory.contiguous.longest.mean_bytes is None
    assert memory.contiguous.longest.mean_times_held == 105 / 32
    assert memory.need is not None and (memory.need.bytes, memory.need.blocks) == (None, 6)
    assert "kv_heads" in memory.missing[0]


def without(trace: Trace, *kinds: type) -> Memory:
    return account(e for e in trace.envelopes() if type(e.event) not in kinds)


def test_without_writes_only_what_is_unwritten_is_unknown() -> None:
    memory = without(four_steps(), SlotsWritten)
    assert memory.held is not None and memory.held.mean_blocks == 2.0
    assert memory.fragmentation is None
    assert memory.contiguous.longest is not None
    assert memory.contiguous.longest.mean_wasted_share is None
    assert memory.contiguous.longest.mean_times_held == 105 / 32
    assert any("SlotsWritten" in sentence for sentence in memory.missing)


def test_without_requests_what_they_would_have_reserved_is_unknown() -> None:
    memory = without(four_steps(), RequestAdded)
    assert memory.contiguous.longest is None
    assert memory.held is not None and memory.held.mean_blocks == 2.0
    assert any("3 requests held blocks" in sentence for sentence in memory.missing)


def test_without_steps_nothing_is_said_of_time() -> None:
    memory = without(four_steps(), StepScheduled, StepCompleted, SlotsWritten)
    assert (memory.steps, memory.held, memory.cached, memory.fragmentation) == (0, None, None, None)
    assert memory.contiguous.longest is None
    assert any("no step" in sentence for sentence in memory.missing)


def test_a_dropped_span_leaves_what_came_after_it() -> None:
    trace = four_steps()
    at = trace.find(StepScheduled, 2)
    trace.insert(at, SpanDropped(first_seq=at - 3, count=3, why="slow"))
    memory = of(trace)
    assert memory.held is not None and memory.held.mean_blocks == (2 + 3 + 0 + 1) / 4
    assert memory.pool is not None and memory.pool.never_used_blocks == 4
    assert any("dropped" in sentence for sentence in memory.missing)


def test_a_group_that_the_header_does_not_list_is_named() -> None:
    trace = four_steps()
    trace.insert(len(trace.events) - 1, BlockAllocated(block=0, request="C", index=0, group=4))
    assert any("KV group 4" in sentence for sentence in of(trace).missing)


def test_a_long_run_is_counted_in_the_memory_of_what_is_alive() -> None:
    account = MemoryAccount()
    trace = new()
    for i in range(300):
        name = f"r{i}"
        trace.next_step()
        trace.add(name, range(4))
        trace.allocate(name, 0, i % 8)
        trace.step((name, 0, 4), sample={name: 9})
        trace.finish(name)
    for envelope in trace.envelopes():
        account.see(envelope)
    state = account._state
    pool = state.pool()
    assert not pool.free
    held = (state.requests, pool.tables, state.steps, account._open, account._holds)
    assert max(map(len, held)) <= 10
    assert len(state.log) == 0
    assert account.report().steps == 300


def test_a_run_of_nothing_but_a_header_says_what_a_token_takes() -> None:
    trace = new()
    memory = of(trace, requests=2, length=5)
    assert memory.need is not None and memory.need.bytes == 2 * 5 * 128
    assert (memory.steps, memory.held) == (0, None)
