"""A trace that is being written can be read along, by somebody whom its writer never notices."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.recorder.errors import MissingTrace
from kvrewind.recorder.events import BlockAllocated, Envelope, RunEnded, SpanDropped
from kvrewind.recorder.follow import GONE_AFTER_S, Follower
from kvrewind.recorder.presence import is_being_written
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def emit_steps(writer: TraceWriter, *steps: int) -> None:
    for step in steps:
        for block in (step, step + 1):
            writer.emit(BlockAllocated(block=block, request=f"r{step}", index=0), step)


def committed(writer: TraceWriter, steps: int) -> None:
    """Until so many steps are in the file; the last one that was emitted is still open."""
    deadline = time.monotonic() + 30
    while writer.steps < steps and time.monotonic() < deadline:
        time.sleep(0.002)
    assert writer.steps >= steps


def places(envelopes: list[Envelope]) -> list[tuple[int, int]]:
    return [(envelope.step, envelope.seq) for envelope in envelopes]


@pytest.fixture
def writer(tmp_path: Path):
    with TraceWriter(tmp_path / "live.kvtrace") as writer:
        yield writer


def test_each_look_gives_the_steps_that_were_committed_since(writer: TraceWriter) -> None:
    follower = Follower(writer.path)
    assert follower.look() == ([], None)
    emit_steps(writer, 1, 2, 3)
    committed(writer, 2)
    assert places(follower.look().envelopes) == [(1, 0), (1, 1), (2, 2), (2, 3)]
    emit_steps(writer, 4)
    committed(writer, 3)
    assert places(follower.look().envelopes) == [(3, 4), (3, 5)]
    assert follower.look() == ([], None)


def test_it_begins_where_it_is_told_to(writer: TraceWriter) -> None:
    emit_steps(writer, 1, 2, 3)
    committed(writer, 2)
    assert places(Follower(writer.path, 3).look().envelopes) == [(2, 3)]


def test_a_long_gap_is_stepped_over(writer: TraceWriter) -> None:
    dropped = SpanDropped(first_seq=1, count=99_999, why="the disk was slow")
    writer.write_envelopes(
        [
            Envelope(0, 1, 0, 0, BlockAllocated(block=1, request="r", index=0)),
            Envelope(100_000, 2, 0, 0, dropped),
            Envelope(100_001, 3, 0, 0, RunEnded(reason="done")),
        ]
    )
    writer.close()
    follower = Follower(writer.path)
    looks = [follower.look() for _ in range(3)]
    assert [e.seq for look in looks for e in look.envelopes] == [0, 100_000, 100_001]
    assert looks[-1].end == "ended"


def test_it_ends_with_the_run_and_leaves_a_single_file(writer: TraceWriter) -> None:
    follower = Follower(writer.path)
    emit_steps(writer, 1, 2)
    committed(writer, 1)
    follower.look()
    writer.emit(RunEnded(reason="done"), 2)
    writer.close()
    last = follower.look()
    assert ([e.kind for e in last.envelopes][-1], last.end) == ("RunEnded", "ended")
    assert [p.name for p in writer.path.parent.iterdir()] == ["live.kvtrace"]


def test_a_writer_that_rests_is_not_gone(writer: TraceWriter) -> None:
    clock = Clock()
    follower = Follower(writer.path, now=clock)
    emit_steps(writer, 1, 2)
    committed(writer, 1)
    follower.look()
    clock.now += 1_000
    assert follower.look() == ([], None)


def test_a_writer_that_left_without_an_end_is_noticed(writer: TraceWriter) -> None:
    clock = Clock()
    follower = Follower(writer.path, now=clock)
    emit_steps(writer, 1, 2)
    writer.close()
    assert places(follower.look().envelopes) == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert follower.look().end is None
    clock.now += GONE_AFTER_S
    assert follower.look() == ([], "abandoned")


def test_patience_can_be_limited(writer: TraceWriter) -> None:
    clock = Clock()
    follower = Follower(writer.path, idle_s=5, now=clock)
    clock.now = 4
    assert follower.look().end is None
    emit_steps(writer, 1, 2)
    committed(writer, 1)
    assert len(follower.look().envelopes) == 2
    clock.now = 8
    assert follower.look().end is None
    clock.now = 9
    assert follower.look().end == "silent"


def test_a_file_that_was_removed_or_replaced_is_told(writer: TraceWriter, tmp_path: Path) -> None:
    follower, other = Follower(writer.path), Follower(writer.path)
    writer.path.unlink()
    assert follower.look() == ([], "removed")
    with TraceWriter(tmp_path / "other.kvtrace") as second:
        emit_steps(second, 1, 2)
    second.path.rename(writer.path)
    assert other.look() == ([], "replaced")


def test_what_cannot_be_trusted_is_not_given(make_trace: Callable[..., Path]) -> None:
    path = make_trace(12)
    connection = sqlite3.connect(path)
    connection.execute(
        "update events set payload = x'c1' where kind = 'TokensSampled' and step = 6"
    )
    connection.commit()
    connection.close()
    follower = Follower(path)
    looks = [follower.look() for _ in range(10)]
    given = [envelope for look in looks for envelope in look.envelopes]
    ends = [look.end for look in looks if look.end is not None]
    assert ends[0] == "damaged"
    assert {envelope.step for envelope in given} == {0, 1, 2, 3, 4, 5}
    assert follower.problem is not None
    assert "TokensSampled" in follower.problem


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(MissingTrace):
        Follower(tmp_path / "none.kvtrace")


def test_a_trace_says_whether_it_is_being_written(writer: TraceWriter) -> None:
    with TraceReader(writer.path) as reader:
        assert reader.count == 0
        assert is_being_written(writer.path)
        emit_steps(writer, 1)
        writer.close()
        assert is_being_written(writer.path) is False  # though a reader has it open
    assert is_being_written(writer.path) is False
