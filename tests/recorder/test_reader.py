"""What a trace answers, in whatever state it is found."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
from kvrewind.recorder.errors import (
    KvrewindError,
    MissingTrace,
    NewerFormat,
    NoSuchPosition,
    NotATrace,
    UnreadableTrace,
)
from kvrewind.recorder.events import RequestAdded, RunEnded, RunStarted
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter

Make = Callable[..., Path]


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


# --- a sound trace --------------------------------------------------------------------------------


def test_the_events_come_back_in_order_and_in_ranges(
    make_trace: Make, sample_events: Callable[..., list]
) -> None:
    with TraceReader(make_trace(9)) as trace:
        emitted = sample_events(9, ended=True)
        assert [(e.event, e.step) for e in trace.envelopes()] == emitted
        assert [e.seq for e in trace.envelopes(3, 7)] == [3, 4, 5, 6]
        assert [e.seq for e in trace.envelopes(45)] == [45, 46, 47]
        assert [e.seq for e in trace.envelopes(45, 1 << 70)] == [45, 46, 47]
        assert (trace.count, trace.last_seq, trace.last_step) == (48, 47, 9)
        assert trace.complete


def test_the_run_is_its_header(make_trace: Make, tmp_path: Path) -> None:
    with TraceReader(make_trace(1)) as trace:
        assert isinstance(trace.run, RunStarted)
        assert trace.run.config["sharing"] == "tenant"
    with TraceWriter(tmp_path / "headless.kvtrace") as writer:
        writer.emit(RunEnded(reason="done"), 1)
    with TraceReader(writer.path) as trace:
        assert trace.run is None


def test_find_gives_the_events_of_a_block_or_a_request(make_trace: Make) -> None:
    with TraceReader(make_trace(30)) as trace:
        everything = list(trace.envelopes())
        of_block = [e for e in everything if getattr(e.event, "block", None) == 8]
        of_both = [e for e in of_block if getattr(e.event, "request", None) == "r2"]
        assert len(of_block) == 3
        assert list(trace.find(block=8)) == of_block
        assert list(trace.find(block=8, request="r2")) == of_both != []
        assert {e.kind for e in trace.find(request="r1")} == {
            "RequestAdded",
            "BlockAllocated",
            "BlockRegistered",
        }
        assert list(trace.find(block=99)) == list(trace.find(block=1 << 70)) == []
        assert list(trace.find(request="\udcff")) == []


def test_a_position_is_step_and_seq_or_seq_alone(make_trace: Make) -> None:
    with TraceReader(make_trace(3)) as trace:
        assert trace.position("2:9") == trace.position(" 9 ") == 9
        assert trace.at(9).position == "2:9"
        assert isinstance(trace.at(1).event, RequestAdded)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "step:seq"),
        ("step 9", "step:seq"),
        ("1:2:3", "step:seq"),
        ("-1", "step:seq"),
        ("²", "step:seq"),
        ("3:9", "did you mean 2:9"),
        ("400", "no event 400.*last is 17"),
        ("9" * 30, "no event"),
        ("9" * 5_000, "step:seq"),
    ],
)
def test_a_wrong_position_is_explained(make_trace: Make, text: str, says: str) -> None:
    with TraceReader(make_trace(3)) as trace, pytest.raises(NoSuchPosition, match=says):
        trace.position(text)


def test_iterators_may_interleave(make_trace: Make) -> None:
    with TraceReader(make_trace(40)) as trace:
        pairs = list(zip(trace.envelopes(), trace.envelopes(100), strict=False))
        assert all(b.seq - a.seq == 100 for a, b in pairs)
        assert len(pairs) == trace.count - 100


# --- not a trace ----------------------------------------------------------------------------------


def test_what_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("SQLite is a database" * 20)
    empty = tmp_path / "empty.kvtrace"
    empty.touch()
    other = tmp_path / "other.db"
    edit(other, "create table events (seq integer primary key)")
    for path in (text, empty, other, tmp_path):
        with pytest.raises(NotATrace, match=f"{path}.*not a kvrewind trace"):
            TraceReader(path)
    with pytest.raises(MissingTrace, match=r"missing\.kvtrace: there is no such file"):
        TraceReader(tmp_path / "missing.kvtrace")


def test_a_newer_format_is_refused(make_trace: Make) -> None:
    path = make_trace()
    edit(path, "pragma user_version = 9")
    with pytest.raises(NewerFormat, match=r"format 9.*up to 2.*upgrade"):
        TraceReader(path)


# --- cut, damaged, changed ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [40, 700, 4_000])
@pytest.mark.parametrize("kept", [0.97, 0.5, 0.3])
def test_a_trace_cut_short_opens_as_far_as_it_goes(
    make_trace: Make, sample_events: Callable[..., list], steps: int, kept: float
) -> None:
    path = make_trace(steps)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    try:
        trace = TraceReader(path)
    except UnreadableTrace as refused:
        assert steps == 40  # so small that nearly every page is needed
        assert "cut short" in str(refused)
        return
    with trace:
        emitted = sample_events(steps, ended=True)
        read = [(e.event, e.step) for e in trace.envelopes()]
        assert read == emitted[: len(read)]
        assert 0 < len(read) <= len(emitted)
        assert steps == 40 or len(read) > len(emitted) * (kept - 0.1)
        assert trace.last_step == read[-1][1]
        assert not trace.complete
        assert "cut short" in trace.problems[0]
        assert f"read up to seq {len(read) - 1}" in trace.problems[0]
        assert trace.verify_chain() is None
        assert list(trace.find(block=3)) == [
            e for e in trace.envelopes() if getattr(e.event, "block", None) == 3
        ]


def test_a_cut_trace_ends_with_a_whole_step(make_trace: Make, sample_events: Callable) -> None:
    path = make_trace(1_000)
    data = path.read_bytes()
    emitted = sample_events(1_000, ended=True)
    for kept in range(20, 90, 7):
        path.write_bytes(data[: len(data) * kept // 100])
        with TraceReader(path) as trace:
            count = trace.count
            assert emitted[count][1] > emitted[count - 1][1]


def test_a_trace_cut_to_its_first_bytes_is_refused_in_words(make_trace: Make) -> None:
    path = make_trace(300)
    data = path.read_bytes()
    for size in (1, 15, 16, 50, 99, 100, 512, 4096, 8192, 20_000):
        path.write_bytes(data[:size])
        with pytest.raises(KvrewindError, match=path.name):
            TraceReader(path)


def test_no_damage_to_the_file_gives_anything_but_our_errors(make_trace: Make) -> None:
    path = make_trace(300)
    data = path.read_bytes()
    outcomes = set()
    for index in range(0, len(data), len(data) // 60):
        changed = bytearray(data)
        changed[index : index + 40] = b"\xa5" * len(changed[index : index + 40])
        path.write_bytes(changed)
        try:
            with TraceReader(path) as trace:
                outcomes.add(bool(trace.problems))
                assert sum(1 for _ in trace.envelopes()) == trace.count
        except KvrewindError:
            outcomes.add(None)
    assert True in outcomes


def test_a_changed_event_breaks_the_chain_at_its_step(make_trace: Make) -> None:
    path = make_trace(12)
    edit(path, "update events set block = 5 where seq = (select min(seq) from events where step=7)")
    with TraceReader(path) as trace:
        assert trace.verify_chain() == 7
        assert "broken at step 7" in trace.problems[0]
        assert trace.count == 63


@pytest.mark.parametrize(
    ("statement", "step"),
    [
        ("delete from events where seq = 20", 4),
        ("delete from events where step >= 11", 11),
        ("update events set kind = 'BlockFreed' where seq = 20", 4),
        ("update steps set digest = x'00' where step = 5", 5),
        ("update steps set digest = 'gone' where step = 5", None),
        ("delete from steps where step = 12", 12),
        ("update events set step = 'x' where seq = 20", 4),
        ("update events set kind = 'Nonsense' where seq = 20", 4),
        ("update events set payload = x'c1' where kind = 'TokensSampled' and step = 6", 6),
    ],
)
def test_tampering_is_noticed_and_what_remains_can_be_read(
    make_trace: Make, statement: str, step: int | None
) -> None:
    path = make_trace(12)
    edit(path, statement)
    with TraceReader(path) as trace:
        broken = trace.verify_chain()
        assert broken == step or step is None
        assert trace.problems
        assert sum(1 for _ in trace.envelopes()) == trace.count > 0


def test_a_payload_that_is_not_msgpack_ends_the_trust_before_its_step(make_trace: Make) -> None:
    path = make_trace(12)
    edit(path, "update events set payload = x'c1' where kind = 'TokensSampled' and step = 6")
    with TraceReader(path) as trace:
        with pytest.raises(UnreadableTrace, match=r"6:31.*TokensSampled"):
            list(trace.envelopes())
        assert any("6:31" in problem for problem in trace.problems)
        assert trace.last_step == 5
        assert [e.step for e in trace.envelopes()][-1] == 5


def test_a_removed_event_does_not_match_the_end_record(make_trace: Make) -> None:
    path = make_trace(4)
    edit(path, "insert into events select 999, step, t_ns, rank, kind, request, block, payload "
         "from events where seq = 3")  # fmt: skip
    with TraceReader(path) as trace:
        assert not trace.complete
        assert len(trace.problems) == 2


def test_the_payload_is_never_unpickled(make_trace: Make) -> None:
    path = make_trace(2)
    connection = sqlite3.connect(path)
    payload = msgpack.packb([None, msgpack.ExtType(42, b"cos\nsystem\n(S'true'\ntR.")])
    connection.execute("update events set payload = ? where seq = 2", (payload,))
    connection.commit()
    connection.close()
    with TraceReader(path) as trace, pytest.raises(UnreadableTrace, match="index is not"):
        trace.at(2)


# --- live, killed, read-only ----------------------------------------------------------------------


def test_a_live_trace_shows_its_committed_steps(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    writer = TraceWriter(tmp_path / "live.kvtrace")
    for event, step in sample_events(50, ended=True):
        writer.emit(event, step)
    deadline = time.monotonic() + 30
    while writer.steps < 50 and time.monotonic() < deadline:
        time.sleep(0.005)
    with TraceReader(writer.path) as live:
        assert live.last_step == 49  # step 50 is still open
        assert live.verify_chain() is None
        assert live.problems == ["no end record: the run was not recorded to its end"]
        writer.close()  # with a reader beside it
        assert live.last_step == 50
    with TraceReader(writer.path) as trace:
        assert trace.complete
        assert trace.problems == []


KILLED = """
import sys
from kvrewind.recorder.events import BlockAllocated
from kvrewind.recorder.writer import TraceWriter
writer = TraceWriter(sys.argv[1])
step = 0
while True:
    step += 1
    for index in range(7):
        writer.emit(BlockAllocated(block=index, request=f"r{index}", index=step), step)
    if step % 200 == 0 and writer.steps >= 200:
        print(writer.steps, flush=True)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What kill -9 leaves of a writer at work."""
    path = tmp_path / "killed.kvtrace"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    return path


def check_killed(path: Path) -> None:
    with TraceReader(path) as trace:
        count = trace.count
        assert count >= 200 * 7
        assert count == trace.last_step * 7
        assert [e.seq for e in trace.envelopes()] == list(range(count))
        assert trace.verify_chain() is None
        assert not trace.complete
        assert trace.problems == ["no end record: the run was not recorded to its end"]


def test_a_killed_writer_leaves_its_last_committed_step(killed: Path) -> None:
    check_killed(killed)


def test_reading_changes_nothing(killed: Path) -> None:
    before = {p.name: p.read_bytes() for p in killed.parent.iterdir() if "shm" not in p.name}
    check_killed(killed)
    after = {p.name: p.read_bytes() for p in killed.parent.iterdir() if "shm" not in p.name}
    assert before == after


def test_a_killed_trace_opens_without_its_shared_memory_file(killed: Path) -> None:
    killed.with_name(killed.name + "-shm").unlink()
    check_killed(killed)


@contextmanager
def where_nothing_can_be_written(*files: Path) -> Iterator[Path]:
    """The files copied to a folder that this process, root or not, may only read."""
    folder = Path(tempfile.mkdtemp())
    for file in files:
        shutil.copyfile(file, folder / file.name)
        (folder / file.name).chmod(0o444)
    folder.chmod(0o555)
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            (folder / "probe").touch()
        yield folder
    finally:
        if privileged:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_trace_opens_where_nothing_can_be_written(make_trace: Make) -> None:
    path = make_trace(9)
    with where_nothing_can_be_written(path) as folder, TraceReader(folder / path.name) as trace:
        assert trace.complete
        assert trace.problems == []


@pytest.mark.parametrize("suffixes", [("", "-wal"), ("", "-wal", "-shm")])
def test_a_killed_trace_opens_where_nothing_can_be_written(
    killed: Path, suffixes: tuple[str, ...]
) -> None:
    files = [killed.with_name(killed.name + suffix) for suffix in suffixes]
    with where_nothing_can_be_written(*files) as folder:
        check_killed(folder / killed.name)
