"""What lies under the app: events read as they are seen, and states folded when they are near."""

from __future__ import annotations

import pytest
from kvrewind.recorder.errors import BadInput
from kvrewind.recorder.events import Envelope, SpanDropped, StepDispatched
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.source import EnvelopeList
from kvrewind.tui.presenters.blame import Blame
from kvrewind.tui.presenters.events import Names
from kvrewind.tui.session import FOLDED_AT_ONCE, Scene, Session
from kvrewind.tui.tape import PAGE, PAGES_KEPT, Tape
from kvrewind.tui.widgets.event_list import EventList
from textual.app import App


class CountingSource(EnvelopeList):
    """Notes which stretches were read."""

    def __init__(self, envelopes) -> None:
        super().__init__(envelopes)
        self.reads: list[tuple[int, int | None]] = []

    def envelopes(self, start_seq=0, stop_seq=None):
        self.reads.append((start_seq, stop_seq))
        return super().envelopes(start_seq, stop_seq)


class Million:
    """A trace of a million events that makes each one when it is asked for."""

    count = 1_000_000
    last_seq = 999_999

    def __init__(self) -> None:
        self.made = 0

    def envelopes(self, start_seq=0, stop_seq=None):
        for seq in range(start_seq, min(stop_seq or self.count, self.count)):
            self.made += 1
            yield Envelope(seq, 1 + seq // 20, 0, 0, StepDispatched())


def test_events_are_read_a_page_at_a_time_and_kept(leak):
    source = CountingSource(leak)
    tape = Tape(source)
    source.reads.clear()
    assert [tape.get(seq) for seq in (200, 201, 255)] == [leak[200], leak[201], leak[255]]
    assert source.reads == [(PAGE, 2 * PAGE)]


async def test_a_list_of_a_million_events_makes_only_those_it_shows():
    source = Million()
    tape = Tape(source)

    class OnlyEvents(App[None]):
        def compose(self):
            yield EventList(tape)

    app = OnlyEvents()
    async with app.run_test(size=(60, 20)) as pilot:
        events = app.query_one(EventList)
        for seq in (0, 500_000, tape.last_seq):
            found = tape.get(seq)
            assert found is not None
            events.show(Scene(seq, found, None, Names(), Blame(), None, None, False))
            await pilot.pause()
            shown = [events.render_line(y).text for y in range(events.size.height)]
            assert sum(f":{seq}" in line for line in shown) == 1
        assert events.count == 1_000_000
        assert source.made < 10 * PAGE


def test_old_pages_are_forgotten():
    source = Million()
    tape = Tape(source)
    for page in range(2 * PAGES_KEPT):
        tape.get(page * PAGE)
    made = source.made
    tape.get((2 * PAGES_KEPT - 1) * PAGE)
    assert source.made == made
    tape.get(0)
    assert source.made == made + PAGE


def test_stepping_goes_over_a_dropped_span(leak):
    gap = Envelope(700, 3, 0, 0, SpanDropped(first_seq=100, count=600, why="the disk was full"))
    tape = Tape(
        EnvelopeList([*leak[:100], gap, *(e._replace(seq=e.seq + 601) for e in leak[100:])])
    )
    assert tape.get(99) == leak[99]
    assert tape.get(400) is None
    assert tape.next(99) == 700
    assert tape.previous(700) == 99
    assert tape.next(tape.last_seq) is None
    assert tape.previous(0) is None


def test_a_session_follows_the_victim_of_a_finding(opened):
    reader = opened("leak")
    session = Session(reader)
    report = check(reader.envelopes())
    session.take_report(report, ())
    culprit = session.culprit()
    assert culprit == report.roots[0].culprit_seq
    assert session.go(culprit)
    assert (session.request, session.block) == (report.roots[0].victim, report.roots[0].block)
    session.picked_request = "r0"
    session.go(culprit + 1)
    assert session.request == "r0"
    session.unpick()
    assert session.request == report.roots[0].victim


def test_jumps_are_remembered_and_steps_are_not(opened):
    session = Session(opened("leak"))
    session.go(100, remember=True)
    session.go(101)
    session.go(300, remember=True)
    assert [session.back(), session.back(), session.back()] == [101, 0, None]


def test_a_long_way_is_left_to_a_worker(tmp_path):
    path = tmp_path / "long.kvtrace"
    with TraceWriter(path) as sink:
        for seq in range(3 * FOLDED_AT_ONCE):
            sink.emit(StepDispatched(), 1 + seq // 20)
    with TraceReader(path) as reader:
        session = Session(reader)
        far = 2 * FOLDED_AT_ONCE + 500
        assert not session.go(far)
        assert session.state is None
        assert not session.take_state(7, session.timeline.state_at(7))
        assert session.take_state(far, session.timeline.state_at(far))
        assert session.go(far + 1)
        session.folded_until = session.last_seq
        assert session.go(3)
        assert session.state is not None
        assert session.state.seq == 3


def test_a_trace_without_events_is_refused(tmp_path, opened):
    path = tmp_path / "empty.kvtrace"
    with TraceWriter(path):
        pass
    with TraceReader(path) as reader, pytest.raises(BadInput, match="no event"):
        Session(reader)
