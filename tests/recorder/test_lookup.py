"""Looking up a request, a block or a slot gives what reading the whole trace gives."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockCopied,
    Envelope,
    Event,
    PrefixLookedUp,
    RunEnded,
    SlotsWritten,
    StepScheduled,
    TransferStarted,
)
from kvrewind.recorder.naming import names_request, touches_block, writes_slot
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter

SIZE = 4
"""Tokens a block, as in the header of `sample_events`."""


def busy_step(step: int) -> Iterator[Event]:
    """Requests that come and go, blocks that are used again, in two KV groups."""
    names = tuple(f"r{(step // 40 + i) % 9}" for i in range(3))
    yield StepScheduled(
        requests=names, computed=(step,) * 3, scheduled=(1,) * 3, phases=("decode",) * 3
    )
    yield BlockAllocated(block=step % 23, request=names[0], index=step)
    for group in (None, 1):
        yield SlotsWritten(
            write="decode",
            requests=(*names, None),
            positions=(step,) * 4,
            slots=(step % 90, 100 + step % 7, 300 - step % 31, -1),
            group=group,
        )
    if step % 5 == 0:
        yield BlockCopied(source=step % 23, destination=step % 21, slots=2)
    if step % 7 == 0:
        yield TransferStarted(
            transfer=step, direction="store", blocks=(step % 19, 3), keys=("k", "l")
        )
        yield PrefixLookedUp(request=names[1], keys=("k",), blocks=(step % 17,), hit_tokens=SIZE)


@pytest.fixture(scope="module")
def long_trace(
    tmp_path_factory: pytest.TempPathFactory, sample_events: Callable[..., list]
) -> tuple[Path, list[Envelope]]:
    """A closed trace of several segments and what is in it."""
    path = tmp_path_factory.mktemp("lookup") / "long.kvtrace"
    with TraceWriter(path) as writer:
        for event, step in sample_events(0, ended=False):
            writer.emit(event, step)
        for step in range(1, 2_000):
            for event in busy_step(step):
                writer.emit(event, step)
        writer.emit(RunEnded(reason="done"), 2_000)
    with TraceReader(path) as trace:
        return path, list(trace.envelopes())


@pytest.fixture(params=["listed", "cut off", "no lists"])
def trace(
    request: pytest.FixtureRequest, long_trace: tuple[Path, list[Envelope]], tmp_path: Path
) -> Iterator[TraceReader]:
    """The trace; as it is when its writer was killed behind the second segment; without lists."""
    path = tmp_path / "copy.kvtrace"
    path.write_bytes(long_trace[0].read_bytes())
    if request.param != "listed":
        behind = 1 if request.param == "cut off" else 0
        connection = sqlite3.connect(path)
        connection.execute(
            "delete from postings where first_seq > (select max(last_seq) from (select last_seq "
            "from postings where what = 'segment' order by last_seq limit ?))" if behind
            else "delete from postings where ? = 0", (behind,)
        )  # fmt: skip
        connection.commit()
        connection.close()
    with TraceReader(path) as reader:
        yield reader


def test_a_long_trace_has_several_segments(long_trace: tuple[Path, list[Envelope]]) -> None:
    with sqlite3.connect(long_trace[0]) as shell:
        segments = shell.execute(
            "select first_seq, last_seq from postings where what = 'segment' order by 1"
        ).fetchall()
    assert len(segments) > 2
    assert segments[0][0] == 0
    assert segments[-1][1] == long_trace[1][-1].seq
    assert all(b[0] == a[1] + 1 for a, b in pairwise(segments))


@pytest.mark.parametrize("name", ["r0", "r5", "nobody"])
def test_a_request_is_found_wherever_it_is_named(
    trace: TraceReader, long_trace: tuple[Path, list[Envelope]], name: str
) -> None:
    expected = [e for e in long_trace[1] if names_request(e.event, name)]
    assert list(trace.of_request(name)) == expected
    assert bool(expected) == (name != "nobody")
    assert list(trace.of_request(name, start_seq=1_000, stop_seq=9_000)) == [
        e for e in expected if 1_000 <= e.seq < 9_000
    ]
    assert list(trace.of_request(name, kinds=["BlockAllocated", "SlotsWritten"])) == [
        e for e in expected if e.kind in ("BlockAllocated", "SlotsWritten")
    ]


@pytest.mark.parametrize(("block", "group"), [(3, 0), (16, 0), (16, 1), (70, 1), (999, 0)])
def test_a_block_is_found_wherever_it_is_named_copied_or_written(
    trace: TraceReader, long_trace: tuple[Path, list[Envelope]], block: int, group: int
) -> None:
    expected = [e for e in long_trace[1] if touches_block(e.event, block, group, SIZE)]
    assert list(trace.touching_block(block, group=group)) == expected
    assert bool(expected) == (block != 999)
    assert list(trace.touching_block(block, group=group, start_seq=500, stop_seq=8_000)) == [
        e for e in expected if 500 <= e.seq < 8_000
    ]


@pytest.mark.parametrize(("slot", "group"), [(13, 0), (13, 1), (88, 0), (102, 1), (5_000, 0)])
def test_the_writers_of_a_slot_are_found_and_the_last_one_before_any_event(
    trace: TraceReader, long_trace: tuple[Path, list[Envelope]], slot: int, group: int
) -> None:
    expected = [e for e in long_trace[1] if writes_slot(e.event, slot, group, SIZE)]
    assert list(trace.writes_of(slot, group=group)) == expected
    assert bool(expected) == (slot != 5_000)
    for stop in (None, 9_000, 5_001, 777, 2):
        before = [e for e in expected if stop is None or e.seq < stop]
        assert trace.last_write(slot, group=group, stop_seq=stop) == (before or [None])[-1]


def test_what_a_live_trace_has_not_yet_listed_is_found_too(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    with TraceWriter(tmp_path / "live.kvtrace") as writer:
        for event, step in sample_events(0, ended=False):
            writer.emit(event, step)
        for step in range(1, 1_000):
            for event in busy_step(step):
                writer.emit(event, step)
            if step == 990:
                while writer.steps < 985:
                    pass
        with TraceReader(writer.path) as trace:
            everything = list(trace.envelopes())
            stop = everything[-1].seq + 1
            found = list(trace.of_request("r3", stop_seq=stop))
    assert found == [e for e in everything if names_request(e.event, "r3")] != []


def test_a_damaged_list_is_passed_over(
    long_trace: tuple[Path, list[Envelope]], tmp_path: Path
) -> None:
    path = tmp_path / "copy.kvtrace"
    path.write_bytes(long_trace[0].read_bytes())
    connection = sqlite3.connect(path)
    connection.execute("update postings set seqs = x'0c05' where what = 'slots' and key = 0")
    connection.execute("update postings set seqs = 'text' where what = 'request'")
    connection.commit()
    connection.close()
    with TraceReader(path) as trace:
        writes = [e for e in long_trace[1] if writes_slot(e.event, 3, 0, SIZE)]
        assert list(trace.writes_of(3)) == writes != []
        assert trace.last_write(3) == writes[-1]
        named = [e for e in long_trace[1] if names_request(e.event, "r4")]
        assert list(trace.of_request("r4")) == named != []
