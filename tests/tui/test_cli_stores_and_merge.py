"""Runs in a database and merged traces, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvrewind.tui.cli import run


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A database with a run that leaks and a sound one."""
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    options = ["record", "--model", "symbolic", "--first", "4", "--on-finding", "off"]
    assert run([*options, "--store", f"{url}?run=leak", "--fault", "key-length-only"]) == 0
    assert run([*options, "--store", f"{url}?run=sound"]) == 0
    capsys.readouterr()
    return url


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, object]:
    capsys.readouterr()
    status = run([*arguments, "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def test_runs_are_listed(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, entries = as_json(capsys, "runs", fleet)
    assert status == 0 and isinstance(entries, list)
    assert [(e["name"], e["complete"]) for e in entries] == [("leak", True), ("sound", True)]
    assert all(e["last_seq"] > 50 and e["steps"] > 5 for e in entries)
    assert run(["runs", fleet]) == 0
    shown = capsys.readouterr().out
    assert "leak" in shown and "sound" in shown


def test_every_command_that_takes_a_trace_takes_a_run(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leak = f"{fleet}?run=leak"
    status, report = as_json(capsys, "check", leak)
    assert status == 1 and isinstance(report, dict) and report["verdict"] == "contaminated"
    status, facts = as_json(capsys, "info", leak)
    assert status == 0 and isinstance(facts, dict) and facts["trace"] == leak
    assert run(["replay", leak]) == 0
    status, blame = as_json(capsys, "bisect", leak)
    assert status == 1 and isinstance(blame, dict) and blame["decisions"]
    lines, page = tmp_path / "leak.jsonl", tmp_path / "leak.html"
    assert run(["export", leak, "--out", str(lines)]) == 0
    assert run(["export", leak, "--format", "html", "--out", str(page)]) == 0
    assert run(["redact", leak, "--out", str(tmp_path / "redacted.kvtrace")]) == 0
    assert run(["bundle", leak, "--out", str(tmp_path / "leak.zip")]) == 0
    assert run(["import", str(lines), "--out", str(tmp_path / "leak.kvtrace")]) == 0
    status, again = as_json(capsys, "check", str(tmp_path / "leak.kvtrace"))
    assert (status, again) == (1, report)


def test_a_file_and_a_store_are_not_both_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["record", "--store", "sqlite:///x.db", "--out", str(tmp_path / "x.kvtrace")]
    assert run(both) == 2
    assert "give one of them" in capsys.readouterr().err
    assert run(["record", "--store", str(tmp_path / "x.db")]) == 2
    assert "sqlite:///" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_recorded_over_another(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    again = ["record", "--model", "symbolic", "--first", "1", "--store", f"{fleet}?run=leak"]
    assert run(again) == 2
    assert "--force" in capsys.readouterr().err
    assert run([*again, "--force"]) == 0
    assert as_json(capsys, "check", f"{fleet}?run=leak")[0] == 0


def test_ranks_are_merged_from_files_and_runs(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank0, both = tmp_path / "rank0.kvtrace", tmp_path / "both.kvtrace"
    options = ["record", "--model", "symbolic", "--first", "4", "--out", str(rank0)]
    assert run(options) == 0
    capsys.readouterr()
    assert run(["merge", str(rank0), f"{fleet}?run=leak", "--out", str(both)]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "of 2 ranks" in said.err
    status, report = as_json(capsys, "check", str(both))
    assert status == 1 and isinstance(report, dict)
    assert all(f["explanation"].startswith("rank 1: ") for f in report["findings"])
    assert run(["merge", str(rank0), f"{fleet}?run=leak", "--out", str(both)]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["merge", str(rank0), str(rank0), "--out", str(both), "--force"]) == 0
    assert as_json(capsys, "check", str(both))[0] == 0


@pytest.mark.parametrize("count", [0, 1])
def test_one_trace_is_not_merged(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "a.kvtrace"
    assert run(["record", "--model", "symbolic", "--first", "1", "--out", str(trace)]) == 0
    assert run(["merge", *[str(trace)] * count, "--out", str(tmp_path / "m.kvtrace")]) == 2
    assert "two traces or more" in capsys.readouterr().err


def test_a_trace_is_not_merged_into_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "a.kvtrace"
    assert run(["record", "--model", "symbolic", "--first", "1", "--out", str(trace)]) == 0
    before = trace.read_bytes()
    assert run(["merge", str(trace), str(trace), "--out", str(trace), "--force"]) == 2
    assert "is what is read" in capsys.readouterr().err
    assert trace.read_bytes() == before
