"""What a run may rely on while it is recorded, and afterwards."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvrewind.recorder.errors import BadInput, BadOutput, OutputExists
from kvrewind.recorder.events import BlockAllocated, Envelope, RunEnded, StepDispatched
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter


def allocate(index: int) -> BlockAllocated:
    return BlockAllocated(block=index % 50, request=f"r{index % 7}", index=index)


def test_a_finished_recording_is_one_complete_file(make_trace: Callable[..., Path]) -> None:
    path = make_trace()
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with TraceReader(path) as trace:
        assert trace.complete
        assert trace.problems == []


def test_without_run_ended_the_trace_is_valid_and_incomplete(
    make_trace: Callable[..., Path],
) -> None:
    with TraceReader(make_trace(6, ended=False)) as trace:
        assert trace.count == 2 + 6 * 5
        assert trace.verify_chain() is None
        assert not trace.complete
        assert trace.problems == ["no end record: the run was not recorded to its end"]


def test_an_interrupted_recording_keeps_what_was_emitted(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    with pytest.raises(KeyboardInterrupt), TraceWriter(path) as writer:
        for index in range(10):
            writer.emit(allocate(index), 1 + index)
        raise KeyboardInterrupt
    with TraceReader(path) as trace:
        assert trace.count == 10
        assert not trace.complete


def test_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(OutputExists, match=r"notes\.txt.*--force"):
        TraceWriter(path)
    assert path.read_text() == "mine"


def test_force_replaces_the_old_trace(make_trace: Callable[..., Path]) -> None:
    path = make_trace(30)
    with TraceWriter(path, force=True) as writer:
        writer.emit(allocate(3), 1)
    with TraceReader(path) as trace:
        assert [e.event for e in trace.envelopes()] == [allocate(3)]


def test_a_second_writer_to_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    with TraceWriter(path) as writer:
        writer.emit(allocate(1), 1)
        with pytest.raises(OutputExists):
            TraceWriter(path)
        writer.emit(RunEnded(reason="done"), 2)
    with TraceReader(path) as trace:
        assert trace.complete


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadOutput, match=r"run\.kvtrace can't be created: no such file or dir"):
        TraceWriter(tmp_path / "no" / "run.kvtrace")
    with pytest.raises(OutputExists):
        TraceWriter(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_systems_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "run.kvtrace"
    with TraceWriter(path) as writer:
        writer.emit(allocate(1), 1)
    with TraceReader(path) as trace:
        assert trace.count == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.kvtrace"]


def test_a_folder_is_not_replaced_by_force(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(BadOutput, match="folder can't be created"):
        TraceWriter(folder, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_vanished_directory_stops_the_recording_and_not_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writer = TraceWriter(folder / "run.kvtrace")
    for index in range(2_000):
        writer.emit(allocate(index), 1 + index // 4)
        if index == 1_000:
            shutil.rmtree(folder)
    writer.close()
    assert "removed or replaced" in str(writer.failure)
    assert "run.kvtrace" in str(writer.failure)
    assert not folder.exists()


def test_a_file_replaced_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    with TraceWriter(path) as writer:
        for index in range(2_000):
            writer.emit(allocate(index), 1 + index // 4)
            if index == 1_000:
                path.unlink()
                path.write_text("somebody else's")
    assert "removed or replaced" in str(writer.failure)
    assert path.read_text() == "somebody else's"


def test_an_event_that_cannot_be_stored_stops_the_recording_and_not_the_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.kvtrace"
    with TraceWriter(path) as writer:
        writer.emit(allocate(1), 1)
        writer.emit(StepDispatched(unknown={"x": object()}), 2)
        for index in range(100):
            writer.emit(allocate(index), 3 + index)
        writer.emit(RunEnded(reason="done"), 200)
    assert "StepDispatched" in str(writer.failure)
    with TraceReader(path) as trace:
        assert not trace.complete


FULL_DISK = """
import resource, sys
from kvrewind.recorder.events import BlockAllocated, RunEnded
from kvrewind.recorder.writer import TraceWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
with TraceWriter(sys.argv[1]) as writer:
    for index in range(50_000):
        writer.emit(BlockAllocated(block=index % 9, request="r", index=index), index // 10)
    writer.emit(RunEnded(reason="done"), 6_000)
print(writer.failure)
"""


def test_a_full_disk_stops_the_recording_and_not_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "stopped" in ran.stdout
    with TraceReader(path) as trace:
        assert not trace.complete
        assert trace.count < 50_000
        assert trace.verify_chain() is None


def test_observers_get_each_committed_step_in_order(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    seen: list[Sequence[Envelope]] = []
    writer = TraceWriter(tmp_path / "run.kvtrace", observers=[seen.append])
    for event, step in sample_events(8, ended=True):
        writer.emit(event, step)
    writer.close()
    assert [{e.step for e in group} for group in seen] == [{step} for step in range(9)]
    with TraceReader(writer.path) as trace:
        assert [e for group in seen for e in group] == list(trace.envelopes())


def test_an_observer_that_raises_does_not_end_the_recording(tmp_path: Path) -> None:
    def broken(_: Sequence[Envelope]) -> None:
        raise ZeroDivisionError("a check with a bug")

    seen: list[Sequence[Envelope]] = []
    with TraceWriter(tmp_path / "run.kvtrace", observers=[broken, seen.append]) as writer:
        for index in range(5):
            writer.emit(allocate(index), 1 + index)
    assert [type(error) for error in writer.observer_failures] == [ZeroDivisionError]
    assert len(seen) == 5
    assert writer.failure is None


def test_threads_may_emit_at_once(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.kvtrace")
    threads = [
        threading.Thread(target=lambda: [writer.emit(allocate(i), 1 + i // 50) for i in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    with TraceReader(writer.path) as trace:
        envelopes = list(trace.envelopes())
        assert [e.seq for e in envelopes] == list(range(2_000))
        assert [e.t_ns for e in envelopes] == sorted(e.t_ns for e in envelopes)
        assert trace.verify_chain() is None


def test_the_cost_of_recording_is_counted(make_trace: Callable[..., Path], tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.kvtrace") as writer:
        for index in range(3_000):
            writer.emit(allocate(index), 1 + index // 10)
    assert (writer.events, writer.steps) == (3_000, 300)
    assert writer.emit_s > 0
    assert writer.busy_s > 0


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_given_envelopes_keep_their_seq_time_and_rank(
    any_envelopes: st.SearchStrategy[list[Envelope]], tmp_path: Path, data: st.DataObject
) -> None:
    envelopes = data.draw(any_envelopes)
    path = tmp_path / "imported.kvtrace"
    with TraceWriter(path, force=True) as writer:
        writer.write_envelopes(envelopes)
    assert writer.failure is None
    with TraceReader(path) as trace:
        assert list(trace.envelopes()) == envelopes
        assert trace.verify_chain() is None


def test_given_envelopes_must_come_in_order(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.kvtrace") as writer:
        writer.emit(allocate(1), 1)
        with pytest.raises(BadInput, match="1:0"):
            writer.write_envelopes([Envelope(0, 1, 0, 0, allocate(2))])


def test_the_sqlite_shell_can_ask_for_a_block(make_trace: Callable[..., Path]) -> None:
    with sqlite3.connect(make_trace()) as shell:
        rows = shell.execute("select seq, step, kind, request from events where block = 17")
        found = rows.fetchall()
        plan = shell.execute("explain query plan select * from events where block = 17").fetchone()
    assert ("BlockRegistered", "r1") in {row[2:] for row in found}
    assert {row[1] for row in found} == {15, 16}
    assert "events_block" in plan[3]


def test_what_a_removed_trace_left_beside_it_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    killed = TraceWriter(path)
    for step in range(50):
        killed.emit(StepDispatched(), step)
    while killed.steps < 40:
        time.sleep(0.01)
    left = {s: path.with_name(path.name + s).read_bytes() for s in ("-wal", "-shm")}
    killed.close()
    path.unlink()
    for suffix, content in left.items():
        path.with_name(path.name + suffix).write_bytes(content)
    with TraceWriter(path) as writer:
        writer.emit(RunEnded(reason="completed"), 1)
    assert writer.failure is None
    with TraceReader(path) as reader:
        assert [e.event for e in reader.envelopes()] == [RunEnded(reason="completed")]
        assert reader.problems == []
