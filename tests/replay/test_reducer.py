"""What a user may rely on: every event sequence folds, and folds to what the events say."""

from __future__ import annotations

from builders import Row, Trace
from hypothesis import given, settings
from kvrewind.recorder.events import (
    BlockCopied,
    BlockFreed,
    BlockReleased,
    BlockShared,
    DecisionMade,
    DraftVerified,
    EpochChanged,
    RequestForked,
    RequestPreempted,
    RequestRevised,
    SpanDropped,
    StepCompleted,
    StepScheduled,
    TransferFinished,
    TransferStarted,
)
from kvrewind.replay.reducer import apply, fold
from kvrewind.replay.state import State
from strategies import traces


def after(trace: Trace) -> State:
    return fold(trace.envelopes())


@given(traces())
@settings(max_examples=300, deadline=None)
def test_any_sequence_of_valid_events_folds(envelopes):
    state = fold(envelopes)
    state.summary()


@given(traces(), traces(max_size=10))
@settings(max_examples=100, deadline=None)
def test_a_copy_is_independent_of_what_the_original_does_next(before, then):
    state = fold(before)
    copy = state.copy()
    expected, writes = copy.summary(), tuple(copy.log)
    fold(then, state)
    assert copy.summary() == expected
    assert tuple(copy.log) == writes


@given(traces())
@settings(max_examples=100, deadline=None)
def test_folding_on_from_a_keyframe_gives_the_state_of_folding_it_all(envelopes):
    half = len(envelopes) // 2
    keyframe = fold(envelopes[:half])
    whole = fold(envelopes[half:], keyframe.copy())
    again = fold(envelopes[half:], keyframe.copy())
    expected = fold(envelopes)
    assert whole.summary() == again.summary() == expected.summary()
    assert tuple(again.log) == tuple(expected.log)


def test_a_fresh_pool_is_free_in_order_without_its_sentinels():
    state = after(Trace(num_blocks=4, sentinels=(0,)))
    assert state.summary()["free"] == (1, 2, 3)


def test_an_allocation_starts_a_generation_and_a_share_joins_it():
    trace = Trace(num_blocks=3)
    trace.add("A", range(4))
    trace.add("B", range(4))
    trace.allocate("A", 0, 1)
    trace.share("B", 0, 1, "k")
    summary = after(trace).summary()
    assert summary["blocks"][1] == (1, 2, (("A", 0), ("B", 0)), None)
    assert summary["free"] == (0, 2)
    assert summary["tables"] == {"A": (1,), "B": (1,)}


def test_a_freed_block_goes_to_the_tail_and_a_revival_keeps_its_generation_and_key():
    trace = Trace(num_blocks=3)
    trace.add("A", range(4))
    trace.add("B", range(4))
    trace.allocate("A", 0, 0)
    trace.register("A", 0, "k")
    trace.finish("A")
    assert after(trace).summary()["free"] == (1, 2, 0)
    trace.share("B", 0, 0, "k")
    summary = after(trace).summary()
    assert summary["free"] == (1, 2)
    assert summary["blocks"][0] == (1, 1, (("B", 0),), "k")
    assert summary["index"] == {"k": (0,)}


def test_an_allocation_leaves_the_index_alone_but_the_new_generation_has_no_key():
    trace = Trace(num_blocks=2)
    trace.add("A", range(4))
    trace.add("B", range(9, 13))
    trace.allocate("A", 0, 0)
    trace.register("A", 0, "k")
    trace.finish("A")
    trace.allocate("B", 0, 0)
    state = after(trace)
    assert state.summary()["index"] == {"k": (0,)}
    assert state.summary()["blocks"][0][3] is None
    assert state.pool().index["k"][0].generation == 1
    assert state.pool().block(0).generation == 2


def test_a_block_freed_twice_stands_twice_in_the_queue():
    trace = Trace(num_blocks=2)
    trace.add("A", range(4))
    trace.allocate("A", 0, 0)
    trace.release("A", 0)
    trace.emit(BlockReleased(block=0, request="A", index=0, ref_count=-1))
    trace.emit(BlockFreed(block=0, cached=False))
    summary = after(trace).summary()
    assert summary["free"] == (1, 0, 0)
    assert summary["blocks"][0][1] == -1
    trace.allocate("A", 0, 0)
    assert after(trace).summary()["free"] == (1, 0)


def test_a_release_without_an_index_gives_up_one_hold_of_that_request():
    trace = Trace()
    trace.add("A", range(8))
    trace.allocate("A", 0, 2)
    trace.emit(BlockReleased(block=2, request="A", ref_count=0))
    summary = after(trace).summary()
    assert summary["blocks"][2] == (1, 0, (), None)
    assert summary["tables"] == {}


def test_a_trim_that_keeps_a_block_leaves_it_in_the_table_after_the_release():
    trace = Trace()
    trace.add("A", range(4))
    trace.allocate("A", 0, 2)
    trace.emit(
        DecisionMade(
            decision="trim:A:0:0", about="trim", request="A", choice={"index": 0, "kept": 2}
        )
    )
    trace.release("A", 0)
    state = after(trace)
    assert state.summary()["tables"] == {"A": (2,)}
    assert state.pool().block(2).holders == ()


def test_a_copy_on_write_keeps_the_old_hold_until_it_is_released():
    trace = Trace()
    trace.add("A", range(4))
    trace.add("B", range(4))
    trace.allocate("A", 0, 1)
    trace.share("B", 0, 1)
    trace.allocate("B", 0, 2)
    assert after(trace).pool().uncopied == {2: 5}
    trace.emit(BlockCopied(source=1, destination=2, slots=2))
    trace.emit(BlockReleased(block=1, request="B", index=0, ref_count=1))
    state = after(trace)
    assert state.pool().uncopied == {}
    assert state.summary()["tables"] == {"A": (1,), "B": (2,)}
    assert state.summary()["blocks"][1][2] == (("A", 0),)


def test_copied_slots_keep_their_first_writer_and_unwritten_ones_stay_unwritten():
    trace = Trace()
    trace.add("A", range(50, 54))
    trace.allocate("A", 0, 1)
    trace.next_step()
    trace.step(("A", 0, 2))
    trace.add("B", range(50, 54))
    trace.allocate("B", 0, 2)
    trace.emit(BlockCopied(source=1, destination=2, slots=4))
    state = after(trace)
    copied = state.writer(0, 9)
    assert copied is not None
    assert (copied.request, copied.position, copied.token, copied.kind) == ("A", 1, 51, "copy")
    assert state.is_written(0, 9)
    assert not state.is_written(0, 10)


def test_a_slot_written_before_the_block_was_handed_out_again_is_not_written():
    trace = Trace()
    trace.add("A", range(50, 54))
    trace.allocate("A", 0, 1)
    trace.next_step()
    trace.step(("A", 0, 4))
    assert after(trace).is_written(0, 4)
    trace.finish("A")
    trace.add("B", range(4))
    trace.allocate("B", 0, 1)
    state = after(trace)
    assert not state.is_written(0, 4)
    assert state.writer(0, 4).request == "A"


def test_tokens_computed_and_preemptions_follow_the_request():
    trace = Trace()
    trace.add("A", range(5))
    trace.allocate("A", 0, 1)
    trace.allocate("A", 1, 2)
    trace.next_step()
    trace.step(("A", 0, 5), sample={"A": 77})
    request = after(trace).requests["A"]
    assert request.tokens == (0, 1, 2, 3, 4, 77)
    assert request.computed == 5
    trace.emit(RequestPreempted(request="A"))
    request = after(trace).requests["A"]
    assert (request.computed, request.preemptions, request.status) == (0, 1, "preempted")


def test_accepted_drafts_count_and_rejected_ones_do_not():
    trace = Trace()
    trace.add("A", range(5))
    trace.next_step()
    trace.schedule(Row("A", 4, 4))
    trace.emit(DraftVerified(request="A", proposed=(7, 8, 9), first=5, accepted=2))
    assert after(trace).requests["A"].computed == 4 + 1 + 2


def test_a_revision_keeps_the_tokens_that_earlier_writes_were_made_from():
    trace = Trace()
    trace.add("A", range(6))
    trace.emit(RequestRevised(request="A", tokens_kept=3, tokens=(40, 41)))
    request = after(trace).requests["A"]
    assert request.tokens == (0, 1, 2, 40, 41)
    assert request.tokens_at(0) == (0, 1, 2, 3, 4, 5)


def test_a_fork_takes_over_tokens_that_the_parent_sampled():
    trace = Trace()
    trace.add("A", range(3))
    trace.allocate("A", 0, 1)
    trace.next_step()
    trace.step(("A", 0, 3), sample={"A": 77})
    trace.add("B", range(3), parent="A")
    trace.emit(RequestForked(request="B", parent="A", tokens=4))
    request = after(trace).requests["B"]
    assert request.tokens == (0, 1, 2, 77)
    assert request.taken_over == 4


def test_a_pool_epoch_unwrites_every_slot():
    trace = Trace()
    trace.add("A", range(4))
    trace.allocate("A", 0, 1)
    trace.next_step()
    trace.step(("A", 0, 4))
    trace.emit(EpochChanged(epoch=1, what="pool"))
    assert after(trace).writer(0, 4) is None


def test_groups_have_their_own_block_numbers():
    trace = Trace(groups=2)
    trace.add("A", range(4))
    trace.allocate("A", 0, 1)
    trace.allocate("A", 0, 3, group=1)
    state = after(trace)
    assert state.pool(1).block(3).holders == (("A", 0),)
    assert state.pool(1).block(1).holders == ()
    assert state.pool(0).table("A") == (1,)


def test_after_a_dropped_span_a_block_is_unknown_until_allocated_anew():
    trace = Trace()
    trace.add("A", range(4))
    trace.allocate("A", 0, 1)
    trace.emit(SpanDropped(first_seq=3, count=2, why="full"))
    assert not after(trace).pool().block(1).is_known
    trace.allocate("B", 0, 1)
    assert after(trace).pool().block(1).is_known


def test_loaded_slots_count_as_the_storing_requests():
    trace = Trace()
    trace.add("A", range(50, 54))
    trace.allocate("A", 0, 1)
    trace.next_step()
    trace.step(("A", 0, 4))
    trace.emit(TransferStarted(transfer=1, direction="store", blocks=(1,), keys=("k",)))
    trace.emit(TransferFinished(transfer=1, status="ok"))
    trace.add("B", range(50, 54))
    trace.allocate("B", 0, 2)
    trace.emit(TransferStarted(transfer=2, direction="load", blocks=(2,), keys=("k",), request="B"))
    trace.write(Row("B", 0, 4), write="transfer")
    state = after(trace)
    assert [state.writer(0, slot).request for slot in (8, 9, 10, 11)] == ["A"] * 4
    assert state.writer(0, 8).kind == "transfer"


def test_completion_of_a_step_implies_that_of_every_lower_one():
    trace = Trace()
    trace.add("A", range(4))
    for step in (1, 2):
        trace.now = step
        trace.schedule(Row("A", 0, 2))
    trace.now = 2
    seq = trace.emit(StepCompleted())
    state = after(trace)
    assert [state.steps[n].completed_seq for n in (1, 2)] == [seq, seq]


def test_a_share_with_a_count_of_one_takes_the_block_off_the_queue():
    state = State()
    trace = Trace(num_blocks=2)
    trace.emit(BlockShared(block=1, request="A", index=0, ref_count=1, key="k"))
    for envelope in trace.envelopes():
        apply(state, envelope)
    assert state.pool().free == [0]


def test_a_schedule_for_unknown_requests_folds():
    state = State()
    trace = Trace()
    trace.emit(StepScheduled(requests=("Z",), computed=(3,), scheduled=(1,), phases=("decode",)))
    fold(trace.envelopes(), state)
    assert state.requests == {}
