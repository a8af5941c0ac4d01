"""`kvrewind info` tells what a trace is of, what it takes, what happened, and what is wrong."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from kvrewind.recorder import storage
from kvrewind.recorder.events import RunStarted, SpanDropped
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.tui.cli import run

FROZEN_V1 = Path(__file__).parents[2] / "traces" / "v1" / "leak.kvtrace"
TraceOf = Callable[..., Path]


@pytest.fixture
def facts(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def of(trace: Path, *options: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run(["info", str(trace), "--format", "json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    return of


@pytest.fixture
def words(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def of(trace: Path, *options: str) -> str:
        capsys.readouterr()
        assert run(["info", str(trace), *options]) == 0
        return " ".join(capsys.readouterr().out.split())

    return of


def test_the_header_is_told_with_every_switch_and_digest(trace_of: TraceOf, facts) -> None:
    told = facts(trace_of("clean"))
    with TraceReader(trace_of("clean")) as reader:
        header = reader.run
    assert isinstance(header, RunStarted)
    assert told["config"] == json.loads(json.dumps(header.config))
    assert told["tokenizer_digest"] == header.tokenizer_digest is not None
    assert told["versions"] == header.versions
    assert (told["num_blocks"], told["block_size"]) == (header.num_blocks, header.block_size)
    assert told["format"] == 2
    assert told["writer"].startswith("kvrewind ")


def test_sizes_add_up_to_the_file_and_are_told_a_generated_token(trace_of: TraceOf, facts) -> None:
    told = facts(trace_of("clean"))
    sizes = told["sizes"]
    assert sizes["measured"]
    assert told["bytes"] == trace_of("clean").stat().st_size
    assert sizes["events"] + sizes["indexes"] + sizes["other"] == told["bytes"]
    assert sizes["events"] > sizes["indexes"] > 0
    assert sizes["events_per_token"] == round(sizes["events"] / told["sampled_tokens"], 1)


def test_without_dbstat_the_events_are_estimated(
    trace_of: TraceOf, facts, words, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = facts(trace_of("clean"))["sizes"]
    without_dbstat = sa.table("no_dbstat", sa.column("name"), sa.column("pgsize"))
    monkeypatch.setattr(storage, "_PAGES", without_dbstat)
    sizes = facts(trace_of("clean"))["sizes"]
    assert (sizes["measured"], sizes["indexes"], sizes["other"]) == (False, None, None)
    assert 0.5 * measured["events"] < sizes["events"] < 1.2 * measured["events"]
    assert "events about" in words(trace_of("clean"))


def test_what_the_run_did_is_told(trace_of: TraceOf, facts, words) -> None:
    told = facts(trace_of("clean"))
    assert told["ended"] == "completed"
    assert (told["requests"], told["finished"]) == (9, 9)
    assert 0 < told["hit_rate"] < 1
    assert told["hit_rate"] == told["cached_tokens"] / told["prompt_tokens"]
    assert told["preemptions"] == told["kinds"]["RequestPreempted"] > 0
    assert told["events"] == sum(told["kinds"].values())
    assert f"{told['cached_tokens']} prompt tokens (" in words(trace_of("clean"))


def test_findings_are_those_of_check(trace_of: TraceOf, facts, words) -> None:
    trace = trace_of("key-no-parent")
    with TraceReader(trace) as reader:
        report = check(reader.envelopes())
    told = facts(trace)["check"]
    assert told["verdict"] == report.verdict == "contaminated"
    assert told["findings"] == len(report.findings)
    assert told["by_check"] == {"identity": 1, "foreign-read": 1}
    assert told["roots"][0]["position"] == report.roots[0].position
    assert "contaminated: 2 findings (identity 1, foreign-read 1)" in words(trace)
    assert f"identity F01 at {report.roots[0].position}: " in words(trace)


def test_checks_can_be_skipped(trace_of: TraceOf, facts, words) -> None:
    assert facts(trace_of("key-no-parent"), "--no-check")["check"] is None
    assert "skipped (--no-check)" in words(trace_of("key-no-parent"), "--no-check")


def test_a_trace_of_the_first_format_is_told_of_too(facts) -> None:
    told = facts(FROZEN_V1)
    assert told["format"] == 1
    assert told["complete"]
    assert told["check"]["verdict"] == "contaminated"
    assert told["sizes"]["events"] > 0


def test_of_a_damaged_file_what_can_be_trusted_is_told(
    trace_of: TraceOf, facts, words, tmp_path: Path
) -> None:
    whole = trace_of("clean")
    cut = tmp_path / "cut.kvtrace"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    told = facts(cut)
    assert not told["complete"]
    assert "cut short" in told["problems"][0]
    assert 0 < told["events"] < facts(whole)["events"]
    assert told["check"]["verdict"] == "incomplete"
    assert told["ended"] is None
    assert "cut short: read up to seq" in words(cut)


def test_a_live_trace_is_told_of_as_far_as_it_is_written(
    trace_of: TraceOf, facts, words, tmp_path: Path
) -> None:
    with TraceReader(trace_of("clean")) as reader:
        envelopes = list(reader.envelopes())
    half = [e for e in envelopes if e.step <= envelopes[-1].step // 2]
    path = tmp_path / "live.kvtrace"
    with TraceWriter(path) as writer:
        for envelope in envelopes:
            writer.emit(envelope.event, envelope.step)
            if envelope is half[-1]:
                while writer.steps < half[-1].step - 1:
                    time.sleep(0.001)
                told, said = facts(path), words(path)
    assert told["being_written"]
    assert not told["complete"]
    assert 0 < told["steps"] < envelopes[-1].step
    assert "not yet: it is being written" in said
    assert facts(path)["being_written"] is False


def test_a_frozen_recording_says_why(trace_of: TraceOf, facts, words, tmp_path: Path) -> None:
    with TraceReader(trace_of("clean")) as reader:
        envelopes = list(reader.envelopes())
    path = tmp_path / "frozen.kvtrace"
    with TraceWriter(path) as writer:
        writer.observers.append(
            lambda step: writer.freeze("identity at 5:124") if step[0].step == 5 else None
        )
        for envelope in envelopes:
            writer.emit(envelope.event, envelope.step)
            while envelope.step == 7 and writer.frozen is None:
                time.sleep(0.001)
    told = facts(path)
    assert told["frozen"]["reason"] == "identity at 5:124"
    assert told["frozen"]["position"].split(":")[0].isdigit()
    assert not told["complete"]
    assert "frozen identity at 5:124 after " in words(path)


def test_dropped_spans_are_listed(trace_of: TraceOf, facts, words, tmp_path: Path) -> None:
    with TraceReader(trace_of("clean")) as reader:
        envelopes = list(reader.envelopes())
    path = tmp_path / "dropped.kvtrace"
    gone = [e for e in envelopes if 10 <= e.step < 20]
    mark = gone[-1]._replace(
        seq=gone[-1].seq,
        event=SpanDropped(first_seq=gone[0].seq, count=len(gone) - 1, why="full"),
    )
    with TraceWriter(path) as writer:
        writer.write_envelopes(
            [e if e is not gone[-1] else mark for e in envelopes if e not in gone[:-1]]
        )
    told = facts(path)
    assert told["dropped"] == [
        {
            "position": mark.position,
            "first_seq": gone[0].seq,
            "count": len(gone) - 1,
            "why": "full",
        }
    ]
    assert told["ring"] is False
    assert told["check"]["verdict"] != "clean"
    assert f"events {gone[0].seq} to {gone[-2].seq} dropped: full" in words(path)


def test_json_is_one_value_and_nothing_else(
    trace_of: TraceOf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["info", str(trace_of("clean")), "--format", "json"]) == 0
    told = capsys.readouterr()
    assert isinstance(json.loads(told.out), dict)
    assert told.err == ""


def test_a_header_that_somebody_wrote_over_is_no_obstacle(
    trace_of: TraceOf, facts, tmp_path: Path
) -> None:
    path = tmp_path / "odd.kvtrace"
    path.write_bytes(trace_of("clean").read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO header VALUES ('frozen', 'by hand')")
        connection.execute("UPDATE header SET value = x'00ff' WHERE key = 'writer'")
    told = facts(path)
    assert told["frozen"] == {"reason": "by hand", "position": None}
    assert told["writer"] is None


def test_of_a_run_in_a_database_the_events_are_counted(facts, words, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}?run=one"
    assert run(["record", "--model", "symbolic", "--store", url]) == 0
    told = facts(url)  # type: ignore[arg-type]
    assert told["sizes"]["events"] == told["bytes"] > 1000
    assert (told["sizes"]["indexes"], told["being_written"]) == (None, None)
    assert told["check"]["verdict"] == "clean"
    assert "a generated token)" in words(url)  # type: ignore[arg-type]
