"""The examples run as they stand, and what they record is clean and replays."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from kvrewind.tui.cli import run

pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [name, str(trace)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_three_threads_read_their_answers_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "stream.kvtrace"
    run_example("stream.py", trace, monkeypatch)
    told = capsys.readouterr().out.splitlines()
    for name, word in (("alice", "bukose"), ("bob", "timalo"), ("carol", "nidepa")):
        answer = f"the passphrase is {word} ."
        assert f"{name:>6} (eos): {answer}" in told
        pieces = [line.split()[1].removeprefix("##") for line in told if f"{name}: " in line]
        assert "".join(pieces) == answer.replace(" ", "") + "<eos>"
    assert told[-1] == f"next: kvrewind check {trace}"
    assert run(["check", str(trace)]) == run(["replay", str(trace)]) == 0


def test_a_task_that_hangs_up_ends_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "async_client.kvtrace"
    run_example("async_client.py", trace, monkeypatch)
    told = capsys.readouterr().out.splitlines()
    assert "carol hangs up: one nidepa , two n ..." in told
    assert "bob: one timalo , two timalo , three timalo , four timalo ." in told
    assert run(["check", str(trace)]) == run(["replay", str(trace)]) == 0
    capsys.readouterr()
    assert run(["export", str(trace), "--format", "jsonl", "--out", "-"]) == 0
    exported = capsys.readouterr().out
    assert '"request":"carol","reason":"aborted"' in exported
