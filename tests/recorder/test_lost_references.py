"""A trace whose names, block tables or lists are lost opens as far as it can be trusted."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.recorder.errors import KvrewindError, UnreadableTrace
from kvrewind.recorder.events import BlockAllocated, InputsBuilt, RunEnded
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter

STEPS = 400


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, sample_events: Callable[..., list]) -> Path:
    """Two requests whose tables grow; from step 200 on a third. 4 events a step."""
    path = tmp_path_factory.mktemp("lost") / "sound.kvtrace"
    with TraceWriter(path) as writer:
        for event, step in sample_events(0, ended=False):
            writer.emit(event, step)
        for step in range(1, STEPS):
            names = ("a", "b", "late" if step >= 200 else None)
            for index, name in enumerate(names):
                writer.emit(BlockAllocated(block=index, request=name or "a", index=step), step)
            writer.emit(
                InputsBuilt(
                    requests=names,
                    query_lens=(1, 1, 1),
                    seq_lens=(step, step, 0),
                    block_tables=tuple(tuple(range(n, n + 9 + step // 8)) for n in (1, 50, 90)),
                    positions=(step, step, 0),
                    slot_mapping=(step, step + 1, -1),
                ),
                step,
            )
        writer.emit(RunEnded(reason="done"), STEPS)
    return path


@pytest.fixture
def trace(sound: Path, tmp_path: Path) -> Path:
    path = tmp_path / "damaged.kvtrace"
    path.write_bytes(sound.read_bytes())
    return path


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute(statement).rowcount > 0
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "last_step"),
    [
        ("delete from names where name = 'late'", 199),
        ("update names set name = x'00' where name = 'late'", 199),
        ("delete from names where name = 'a'", 0),
    ],
)
def test_where_a_name_is_lost_the_trace_ends_before_its_first_use(
    trace: Path, sound: Path, statement: str, last_step: int
) -> None:
    edit(trace, statement)
    with TraceReader(trace) as reader, TraceReader(sound) as whole:
        assert "names" in " ".join(reader.problems)
        assert reader.last_step == last_step
        assert list(reader.envelopes()) == list(whole.envelopes())[: reader.count]
        assert not reader.complete


def test_where_a_base_is_lost_the_trace_ends_before_what_refers_to_it(
    trace: Path, sound: Path
) -> None:
    with TraceReader(sound) as whole:
        builds = [e for e in whole.envelopes() if isinstance(e.event, InputsBuilt)]
    edit(trace, f"delete from events where seq = {builds[0].seq}")
    with TraceReader(trace) as reader:
        assert reader.problems
        assert sum(1 for _ in reader.envelopes()) == reader.count < 20


def test_a_changed_name_breaks_the_chain(trace: Path) -> None:
    edit(trace, "update names set name = 'other' where name = 'late'")
    with TraceReader(trace) as reader:
        assert reader.verify_chain() == 200


def test_a_changed_base_breaks_the_chain_where_it_stands(trace: Path) -> None:
    edit(
        trace,
        "update events set payload = (select payload from events where kind = 'InputsBuilt' "
        "and step = 150) where kind = 'InputsBuilt' and step = 100",
    )
    with TraceReader(trace) as reader:
        assert reader.verify_chain() == 100


def test_without_the_table_of_lists_the_events_are_read(trace: Path, sound: Path) -> None:
    connection = sqlite3.connect(trace)
    connection.execute("drop table postings")
    connection.commit()
    connection.close()
    with TraceReader(trace) as reader, TraceReader(sound) as whole:
        assert any("damaged" in problem for problem in reader.problems)
        assert list(reader.envelopes()) == list(whole.envelopes())
        assert list(reader.of_request("late")) == list(whole.of_request("late")) != []


def test_a_file_with_any_byte_changed_opens_or_is_refused_in_words(
    trace: Path, sound: Path
) -> None:
    whole = sound.read_bytes()
    draw = random.Random(7)
    outcomes = set()
    for _ in range(15):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= draw.choice([1, 8, 255])
        trace.write_bytes(changed)
        try:
            with TraceReader(trace) as reader:
                outcomes.add(bool(reader.problems))
                assert sum(1 for _ in reader.envelopes()) == reader.count
                assert all(e.seq >= 0 for e in reader.of_request("b"))
                reader.last_write(40)
        except KvrewindError:
            outcomes.add(None)
    assert {True, False} <= outcomes


@pytest.mark.parametrize("kept", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_cut_file_opens_with_every_event_readable(trace: Path, sound: Path, kept: float) -> None:
    data = sound.read_bytes()
    trace.write_bytes(data[: int(len(data) * kept)])
    try:
        reader = TraceReader(trace)
    except UnreadableTrace as refused:
        assert "cut short" in str(refused)
        assert kept < 0.5
        return
    with reader, TraceReader(sound) as whole:
        read = list(reader.envelopes())
        assert read == list(whole.envelopes())[: len(read)]
        assert len(read) == reader.count
        assert reader.problems
        assert reader.verify_chain() is None
