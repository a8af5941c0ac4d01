"""The report as a whole: total, in the contract's shape, and silent on what is legal."""

from __future__ import annotations

import json

from builders import Row, Trace
from hypothesis import given, settings
from kvrewind.recorder.events import (
    BlockScrubbed,
    DraftVerified,
    EpochChanged,
    RequestFinished,
    RequestPreempted,
    RequestRevised,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    TransferFinished,
    TransferStarted,
)
from kvrewind.replay.check import check
from kvrewind.replay.verdict import EXIT_STATUS, PRECEDENCE, verdict_of
from scenes import assert_clean, judged, shared_prefix, two_decoding
from strategies import traces

FIELDS = [
    "check", "class", "root", "position", "seq", "culprit_seq", "decision", "block", "slot", "row",
    "query", "key", "expected", "actual", "victim", "source", "also_affected", "explanation",
]  # fmt: skip


@given(traces())
@settings(max_examples=300, deadline=None)
def test_any_sequence_of_valid_events_is_judged(envelopes):
    report = check(envelopes)
    json.dumps(report.to_json())
    assert report.verdict in PRECEDENCE
    assert bool(report.findings) == any(finding.root for finding in report.findings)


def test_the_report_has_the_shape_of_the_contract():
    report = judged(shared_prefix([10, 11, 99, 13, 50, 51]))
    value = json.loads(json.dumps(report.to_json()))
    assert list(value) == ["verdict", "findings", "missing"]
    assert [list(finding) for finding in value["findings"]] == [FIELDS, FIELDS]
    first = value["findings"][0]
    assert first["position"] == f"2:{first['seq']}"
    assert report.exit_status == 1


def test_findings_are_sorted_by_culprit_with_the_root_first():
    report = judged(shared_prefix([10, 11, 99, 13, 50, 51]))
    assert [f.root for f in report.findings] == [True, False]
    culprits = [f.culprit_seq for f in report.findings]
    assert culprits == sorted(culprits)


def test_the_worst_word_wins_and_has_its_exit_status():
    assert verdict_of((), read_foreign_data=False, missing=()) == "clean"
    assert verdict_of((), read_foreign_data=False, missing=("x",)) == "incomplete"
    assert verdict_of((), read_foreign_data=True, missing=("x",)) == "contaminated"
    assert {word: EXIT_STATUS[word] for word in PRECEDENCE} == {
        "contaminated": 1,
        "violated": 1,
        "unexplained": 1,
        "unstable": 4,
        "incomplete": 4,
        "numeric-drift": 0,
        "clean": 0,
    }


def test_what_the_reader_found_is_missing_too():
    report = check(two_decoding().envelopes(), problems=("the last page is torn",))
    assert report.verdict == "incomplete"
    assert report.missing == ("the last page is torn",)


def test_an_empty_trace_is_incomplete():
    assert check([]).verdict == "incomplete"


# Legal traces of every kind.


def test_a_load_of_ones_own_content_is_clean_and_of_anothers_is_an_identity_fault():
    def restored(tokens: list[int]) -> Trace:
        trace = Trace()
        trace.next_step()
        trace.add("A", range(10, 15))
        trace.allocate("A", 0, 0)
        trace.allocate("A", 1, 1)
        trace.step(("A", 0, 5), sample={"A": 90})
        trace.emit(TransferStarted(transfer=1, direction="store", blocks=(0,), keys=("k0",)))
        trace.emit(TransferFinished(transfer=1, status="ok"))
        trace.finish("A")
        trace.next_step()
        trace.add("B", tokens)
        trace.allocate("B", 0, 4)
        trace.allocate("B", 1, 5)
        trace.emit(
            TransferStarted(transfer=2, direction="load", blocks=(4,), keys=("k0",), request="B")
        )
        trace.write(Row("B", 0, 4), write="transfer")
        trace.emit(TransferFinished(transfer=2, status="ok"))
        trace.step(("B", 4, 1), sample={"B": 91})
        trace.finish("B")
        trace.end()
        return trace

    assert_clean(restored([*range(10, 14), 50]))
    trace = restored([10, 11, 12, 99, 50])
    report = judged(trace)
    root, leak = report.findings
    assert (root.check, root.culprit_seq) == ("identity", trace.find(TransferStarted, 1))
    assert (leak.check, leak.victim, leak.source) == ("foreign-read", "B", "A")


def test_rejected_drafts_are_overwritten_without_a_finding():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 13))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 3), sample={"A": 90})
    trace.next_step()
    trace.allocate("A", 1, 1)
    row = Row("A", 3, 3)
    trace.schedule(row)
    trace.build(row, tokens=(90, 70, 71))
    trace.emit(StepDispatched())
    trace.write(Row("A", 3, 1), write="decode")
    trace.write(
        Row("A", 4, 2), write="draft", tokens=(70, 71), positions=(4, 5), requests=("A", "A")
    )
    trace.emit(StepCompleted())
    trace.emit(DraftVerified(request="A", proposed=(70, 71), first=4, accepted=1))
    trace.sample([row], {"A": 70})
    trace.sample([row], {"A": 91})
    trace.next_step()
    trace.step(("A", 5, 1), sample={"A": 92})
    trace.finish("A")
    trace.end()
    assert_clean(trace)


def test_a_revised_request_recomputes_in_place():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 5), sample={"A": 90})
    trace.next_step()
    trace.emit(RequestRevised(request="A", tokens_kept=2, tokens=(40, 41, 42)))
    trace.tokens["A"] = [10, 11, 40, 41, 42]
    trace.step(("A", 2, 3), sample={"A": 91})
    trace.finish("A")
    trace.end()
    assert_clean(trace)


def test_a_new_weights_epoch_leaves_running_requests_alone_and_voids_shares():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 5), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.emit(EpochChanged(epoch=2, what="weights"))
    trace.step(("A", 5, 1), sample={"A": 91})
    end = len(trace.events)
    trace.finish("A")
    trace.end()
    assert_clean(trace)
    del trace.events[end:]
    trace.tables[0, "A"] = {0: 0, 1: 1}
    trace.counts[0, 0] = trace.counts[0, 1] = 1
    trace.next_step()
    trace.add("B", [*range(10, 14), 50])
    culprit = trace.share("B", 0, 0, "k0")
    trace.allocate("B", 1, 2)
    trace.step(("B", 4, 1), sample={"B": 92})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    (leak,) = judged(trace).findings
    assert (leak.check, leak.fault_class, leak.culprit_seq) == ("foreign-read", "F17", culprit)


def test_a_scrubbed_block_leaks_nothing():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 14))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 4), sample={"A": 90})
    trace.finish("A")
    trace.emit(BlockScrubbed(block=0, how="zero"))
    trace.next_step()
    trace.add("B", range(30, 33))
    trace.allocate("B", 0, 0)
    row = Row("B", 0, 3)
    trace.schedule(row)
    trace.build(row, seq_lens=(4,))
    trace.emit(StepDispatched())
    trace.write(row)
    trace.emit(StepCompleted())
    trace.finish("B")
    trace.end()
    report = judged(trace)
    assert [f.check for f in report.findings] == ["unwritten-read"]
    assert report.verdict == "violated"


def test_nothing_after_a_dropped_span_is_held_against_what_came_before():
    trace = two_decoding()
    at = trace.find(StepCompleted)
    trace.insert(at, SpanDropped(first_seq=at, count=0, why="the disk was full"))
    report = judged(trace)
    assert report.findings == ()
    assert report.verdict == "incomplete"
    assert "the disk was full" in report.missing[0]


def test_a_finished_request_in_flight_may_hold_its_blocks_until_the_step_completes():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 13))
    trace.add("B", range(30, 33))
    trace.allocate("A", 0, 0)
    rows = (Row("A", 0, 3),)
    trace.schedule(*rows)
    trace.build(*rows)
    trace.emit(StepDispatched())
    trace.emit(RequestFinished(request="A", reason="aborted"))
    trace.now = 2
    trace.allocate("B", 0, 1)
    later = Row("B", 0, 3)
    trace.schedule(later)
    trace.build(later)
    trace.emit(StepDispatched())
    trace.write(*rows, step=1)
    trace.emit(StepCompleted(), 1)
    trace.release("A", 0)
    trace.write(later)
    trace.emit(StepCompleted())
    trace.finish("B")
    trace.end()
    assert_clean(trace)


def test_a_request_that_comes_back_may_share_its_own_cached_blocks():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 5), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.emit(RequestPreempted(request="A"))
    trace.give_up("A")
    trace.next_step()
    trace.look_up("A", ["k0"], [0])
    trace.share("A", 0, 0, "k0")
    trace.allocate("A", 1, 3)
    trace.step(("A", 4, 2), sample={"A": 91})
    trace.finish("A")
    trace.end()
    assert_clean(trace)
