"""Any moment of a run, in any order of asking, from any source."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.errors import NoSuchPosition
from kvrewind.recorder.events import (
    Envelope,
    RunEnded,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepDispatched,
)
from kvrewind.recorder.reader import StepSpan, TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay import keyframes, timeline
from kvrewind.replay.reducer import fold
from kvrewind.replay.source import EnvelopeList
from kvrewind.replay.state import State
from kvrewind.replay.timeline import Timeline
from recorded import recorded
from strategies import traces

RUN = recorded("free-while-shared")
LAST = RUN[-1].seq


def plain(state: State) -> dict[str, Any]:
    values = {f.name: getattr(state, f.name) for f in fields(state) if f.name != "log"}
    return values | {"log": list(state.log)}


def folded(events: tuple[Envelope, ...] | list[Envelope], seq: int) -> dict[str, Any]:
    return plain(fold(envelope for envelope in events if envelope.seq <= seq))


@contextmanager
def short_intervals() -> Iterator[None]:
    """So that a run of 600 events has keyframes of both sorts in plenty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyframes, "SMALLEST_INTERVAL", 40)
        patch.setattr(keyframes, "FINE_DISTANCE", 4)
        patch.setattr(timeline, "FINE_DISTANCE", 4)
        patch.setattr(timeline, "WARMED_AT_A_TIME", 50)
        yield


class Counted(EnvelopeList):
    """Counts the events that it hands out."""

    def __init__(self, events: tuple[Envelope, ...]) -> None:
        super().__init__(events)
        self.given = 0

    def envelopes(self, start_seq: int = 0, stop_seq: int | None = None) -> Iterator[Envelope]:
        for envelope in super().envelopes(start_seq, stop_seq):
            self.given += 1
            yield envelope


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, LAST), min_size=1, max_size=8), st.sampled_from(FAULTS))
def test_a_state_is_what_folding_from_the_beginning_gives(seqs: list[int], fault: Any) -> None:
    events = recorded(fault.name)
    with short_intervals():
        moments = Timeline(events)
        for seq in seqs:
            seq = min(seq, events[-1].seq)
            assert plain(moments.state_at(seq)) == folded(events, seq)


@settings(max_examples=60, deadline=None)
@given(traces(), st.data())
def test_events_in_any_order_are_rewound_all_the_same(
    events: list[Envelope], data: st.DataObject
) -> None:
    with short_intervals():
        moments = Timeline(events)
        if events:
            for seq in data.draw(st.lists(st.integers(0, len(events) - 1), max_size=6)):
                assert plain(moments.state_at(seq)) == folded(events, seq)


def test_stepping_back_through_a_whole_run_gives_every_state_again() -> None:
    with short_intervals():
        moments = Timeline(RUN)
        for seq in reversed(range(LAST + 1)):
            assert moments.state_at(seq).summary() == fold(RUN[: seq + 1]).summary()


def test_a_state_that_was_given_stays_as_it_was() -> None:
    moments = Timeline(RUN)
    early = moments.state_at(100)
    moments.state_at(LAST)
    assert plain(early) == folded(RUN, 100)


def test_a_low_seq_is_answered_without_folding_the_rest() -> None:
    source = Counted(RUN)
    Timeline(source).state_at(10)
    assert source.given == 11


def test_a_step_forward_folds_one_event() -> None:
    source = Counted(RUN)
    moments = Timeline(source)
    moments.state_at(300)
    source.given = 0
    for seq in range(301, 311):
        moments.state_at(seq)
    assert source.given == 10


def test_a_seek_folds_no_more_than_an_interval_once_keyframes_exist() -> None:
    with short_intervals():
        source = Counted(RUN)
        moments = Timeline(source)
        moments.state_at(LAST)
        most = keyframes.interval_after(moments.state_at(LAST))
        for seq in (5, LAST - 1, 200, LAST // 2, 201, LAST):
            source.given = 0
            moments.state_at(seq)
            assert 0 < source.given <= most < LAST


def test_single_steps_back_fold_a_few_events_each() -> None:
    with short_intervals():
        source = Counted(RUN)
        moments = Timeline(source)
        moments.state_at(LAST)
        source.given = 0
        for seq in range(LAST - 1, LAST - 201, -1):
            moments.state_at(seq)
        assert source.given < 200 * 3 * keyframes.FINE_DISTANCE


def test_turning_round_after_many_steps_forward_folds_a_few_events() -> None:
    with short_intervals():
        source = Counted(RUN)
        moments = Timeline(source)
        for seq in range(30):
            moments.state_at(seq)
        source.given = 0
        moments.state_at(28)
        assert source.given <= 3 * keyframes.FINE_DISTANCE


def test_warming_leaves_keyframes_so_that_the_end_is_near() -> None:
    with short_intervals():
        source = Counted(RUN)
        moments = Timeline(source)
        heard: list[tuple[int, int]] = []
        moments.warm(lambda seq, last: heard.append((seq, last)))
        assert heard[-1] == (LAST, LAST) and len(heard) > 5
        assert source.given == len(RUN)
        source.given = 0
        assert plain(moments.state_at(LAST - 3)) == folded(RUN, LAST - 3)
        assert source.given <= keyframes.interval_after(moments.state_at(LAST))


def test_questions_between_the_slices_of_warming_are_answered() -> None:
    with short_intervals():
        moments = Timeline(RUN)
        for reached in moments.warming():
            for seq in (LAST - reached, reached):
                assert moments.state_at(seq).summary() == fold(RUN[: seq + 1]).summary()


def test_a_worker_may_warm_while_others_ask() -> None:
    with short_intervals():
        moments = Timeline(RUN)
        worker = threading.Thread(target=moments.warm, args=(lambda seq, last: None,))
        worker.start()
        for seq in (LAST, 3, LAST // 2, 400, 20, 401, LAST):
            assert plain(moments.state_at(seq)) == folded(RUN, seq)
        worker.join()
        assert plain(moments.state_at(LAST - 1)) == folded(RUN, LAST - 1)


def test_a_dropped_span_has_the_state_before_it() -> None:
    dropped = SpanDropped(first_seq=200, count=100, why="the disk was slow")
    events = [*RUN[:200], Envelope(300, 12, 0, 0, dropped), *RUN[301:]]
    with short_intervals():
        moments = Timeline(events)
        moments.warm(lambda seq, last: None)
        assert plain(moments.state_at(250)) == folded(events, 199)
        assert plain(moments.state_at(LAST)) == folded(events, LAST)
        assert moments.state_at(300).requests == {}


@pytest.mark.parametrize("seq", [-1, LAST + 1])
def test_outside_the_trace_there_is_no_state(seq: int) -> None:
    with pytest.raises(NoSuchPosition, match=f"no event {seq}"):
        Timeline(RUN).state_at(seq)


def test_a_run_that_goes_on_can_be_asked_for_its_new_events() -> None:
    events = list(RUN[:100])
    moments = Timeline(events)
    moments.state_at(99)
    assert moments.steps[-1].last_seq == 99
    events.extend(RUN[100:])
    assert plain(moments.state_at(LAST)) == folded(RUN, LAST)
    assert moments.steps[-1].last_seq == LAST


# --- positions and steps --------------------------------------------------------------------------


def test_a_position_is_written_in_three_ways() -> None:
    moments = Timeline(RUN)
    there = RUN[200]
    assert moments.position(there.position) == 200
    assert moments.position("200") == 200
    first = next(envelope.seq for envelope in RUN if envelope.step == there.step)
    assert moments.position(f" {there.step}: ") == first < 200


@pytest.mark.parametrize("text", ["", ":", ":5", "a:b", "1:2:3", "-1", "999:", "99999", "1:200"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(NoSuchPosition):
        Timeline(RUN).position(text)


def test_a_position_with_the_wrong_step_names_the_right_one() -> None:
    with pytest.raises(NoSuchPosition, match=f"did you mean {RUN[200].position}"):
        Timeline(RUN).position("1:200")


def test_steps_can_be_walked_both_ways() -> None:
    moments = Timeline(RUN)
    starts = [span.first_seq for span in moments.steps]
    forward = [0]
    while (following := moments.next_step(forward[-1])) is not None:
        forward.append(following)
    assert forward == starts
    assert moments.previous_step(starts[3] + 1) == starts[3]
    assert moments.previous_step(starts[3]) == starts[2]
    assert moments.previous_step(0) is None
    assert [RUN[seq].step for seq in starts] == list(range(RUN[-1].step + 1))


def test_overlapping_steps_have_spans_that_overlap() -> None:
    written = SlotsWritten(write="decode", requests=(), positions=(), slots=())
    steps = (1, 2, 1, 1, 2, 2)
    events = (StepDispatched(), StepDispatched(), written, StepCompleted(), written)
    run = [
        Envelope(seq, step, 0, 0, event)
        for seq, (step, event) in enumerate(
            zip(steps, (*events, RunEnded(reason="done")), strict=True)
        )
    ]
    moments = Timeline(run)
    assert moments.steps == [StepSpan(1, 0, 3, 3), StepSpan(2, 1, 5, 3)]
    assert moments.next_step(0) == 1 and moments.next_step(1) is None
    assert moments.seq_of_step(2) == 1


# --- sources --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceReader]:
    path: Path = tmp_path_factory.mktemp("trace") / "run.kvtrace"
    with TraceWriter(path) as writer:
        writer.write_envelopes(RUN)
    with TraceReader(path) as opened:
        yield opened


def test_a_trace_file_gives_the_same_moments_as_memory(reader: TraceReader) -> None:
    in_file, in_memory = Timeline(reader), Timeline(RUN)
    for seq in (LAST, 0, 7, 300, 299, 298, 301, LAST - 1):
        assert plain(in_file.state_at(seq)) == plain(in_memory.state_at(seq))
        assert in_file.at(seq) == in_memory.at(seq)
    assert in_file.steps == in_memory.steps
    assert in_file.last_seq == in_memory.last_seq == LAST


@pytest.mark.parametrize(
    "which",
    [
        {"block": 3},
        {"request": "r1"},
        {"block": 0, "request": "r1", "kinds": ["BlockShared", "BlockReleased"]},
        {"kinds": ["SlotsWritten"], "start_seq": 100, "stop_seq": 300},
        {"kinds": []},
    ],
)
def test_a_trace_file_finds_the_same_events_as_memory(
    reader: TraceReader, which: dict[str, Any]
) -> None:
    found = list(reader.find(**which))
    assert found == list(EnvelopeList(RUN).find(**which))
    assert bool(found) == (which != {"kinds": []})
