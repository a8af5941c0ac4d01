"""What happens when the disk can't keep up: the run waits, or whole steps are left out and told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvrewind.recorder.events import BlockAllocated, Envelope, RunEnded, SpanDropped
from kvrewind.recorder.handover import ClosedStep, Handover
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.stores.sqlite_file import SqliteFile
from kvrewind.recorder.writer import TraceWriter

PER_STEP = 4


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that is stuck whenever the event is clear."""
    works = threading.Event()
    works.set()
    commit = SqliteFile.commit

    def wait_and_commit(self: SqliteFile) -> None:
        assert works.wait(30)
        commit(self)

    monkeypatch.setattr(SqliteFile, "commit", wait_and_commit)
    yield works
    works.set()


def emit_step(writer: TraceWriter, step: int) -> None:
    for index in range(PER_STEP):
        writer.emit(BlockAllocated(block=index, request=f"r{step}", index=index), step)


def steps_of(path: Path) -> dict[int, list[Envelope]]:
    found: dict[int, list[Envelope]] = {}
    with TraceReader(path) as trace:
        for envelope in trace.envelopes():
            if not isinstance(envelope.event, SpanDropped):
                found.setdefault(envelope.step, []).append(envelope)
    return found


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def test_the_run_waits_for_the_disk_and_nothing_is_lost(
    tmp_path: Path, disk: threading.Event
) -> None:
    path = tmp_path / "run.kvtrace"
    disk.clear()
    writer = TraceWriter(path, queue_events=5 * PER_STEP)
    emitted: list[int] = []

    def run() -> None:
        for step in range(1, 101):
            emit_step(writer, step)
            emitted.append(step)

    engine = threading.Thread(target=run)
    engine.start()
    until(lambda: writer.queued_events == 5 * PER_STEP)
    held_up = len(emitted)
    assert held_up < 20
    assert writer.queued_events <= 5 * PER_STEP
    disk.set()
    engine.join()
    writer.close()
    assert writer.dropped == 0
    assert len(emitted) == 100
    assert {step: len(group) for step, group in steps_of(path).items()} == dict.fromkeys(
        range(1, 101), PER_STEP
    )


def stuck_in_the_middle(path: Path, disk: threading.Event) -> TraceWriter:
    """The disk stands still from step 50 on, for 60 steps, and then works again."""
    with TraceWriter(path, when_full="drop-and-mark", queue_events=3 * PER_STEP) as writer:
        for step in range(1, 151):
            if step == 50:
                until(lambda: writer.queued_events == 0)
                disk.clear()
            elif step == 110:
                disk.set()
            if not 50 <= step < 110:
                until(lambda: writer.queued_events == 0)
            emit_step(writer, step)
        writer.emit(RunEnded(reason="done"), 151)
    return writer


def test_when_told_to_the_run_goes_on_and_whole_steps_are_marked_as_dropped(
    tmp_path: Path, disk: threading.Event
) -> None:
    path = tmp_path / "run.kvtrace"
    writer = stuck_in_the_middle(path, disk)
    kept = steps_of(path)
    assert set(map(len, kept.values())) == {PER_STEP, 1}, "no step is there by half"
    assert 151 in kept
    assert len(kept) < 100
    with TraceReader(path) as trace:
        envelopes = list(trace.envelopes())
        assert trace.verify_chain() is None
        assert trace.complete, "the file is whole; what it lacks, it says"
    marks = [e for e in envelopes if isinstance(e.event, SpanDropped)]
    lost: set[int] = set()
    for mark in marks:
        assert isinstance(mark.event, SpanDropped)
        assert mark.event.first_seq + mark.event.count == mark.seq
        lost.update(range(mark.event.first_seq, mark.seq))
    there = {e.seq for e in envelopes}
    assert there.isdisjoint(lost)
    assert there | lost == set(range(max(there) + 1))
    assert len(envelopes) == writer.events + len(marks)
    assert writer.dropped == 150 * PER_STEP + 1 - writer.events
    assert writer.dropped > 40 * PER_STEP


def test_the_last_step_is_waited_for(tmp_path: Path, disk: threading.Event) -> None:
    path = tmp_path / "run.kvtrace"
    disk.clear()
    writer = TraceWriter(path, when_full="drop-and-mark", queue_events=1)
    for step in range(1, 30):
        emit_step(writer, step)
    writer.emit(RunEnded(reason="done"), 30)
    closing = threading.Thread(target=writer.close)
    closing.start()
    disk.set()
    closing.join()
    with TraceReader(path) as trace:
        *_, mark, last = trace.envelopes()
    assert isinstance(mark.event, SpanDropped)
    assert last.event == RunEnded(reason="done")


def test_a_run_that_waits_goes_on_when_recording_fails(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SqliteFile) -> None:
        until(lambda: writer.queued_events >= PER_STEP)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SqliteFile, "commit", fail)
    writer = TraceWriter(tmp_path / "run.kvtrace", queue_events=PER_STEP)
    for step in range(1, 200):
        emit_step(writer, step)
    writer.close()
    assert "no space left on device" in str(writer.failure)
    assert writer.queued_events == 0


def closed(step: int, size: int) -> ClosedStep:
    event = BlockAllocated(block=1, request="r", index=0)
    return ClosedStep(step, [Envelope(i, step, 0, 0, event) for i in range(size)])


def test_a_step_larger_than_the_bound_is_taken_when_nothing_else_waits() -> None:
    queue = Handover(3, "drop-and-mark")
    assert queue.put(closed(1, 50))
    assert not queue.put(closed(2, 1))
    assert (queue.depth, queue.steps) == (50, 1)
    assert queue.take() == closed(1, 50)
    assert queue.put(closed(3, 2))
    assert queue.put(closed(4, 1))
    assert not queue.put(closed(5, 1))
    queue.end()
    assert [queue.take(), queue.take(), queue.take()] == [closed(3, 2), closed(4, 1), None]
