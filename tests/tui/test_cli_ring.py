"""A recorder that is left on: what stays, what freezes it, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kvrewind.tui.cli import run

QUIET = 40
"""Requests that are too short to be shared from."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With keys made of lengths only, Bob is given Alice's blocks, in step 304."""
    rng = Random(1)

    def prompt(name: str, length: int, step: int, answer: int) -> dict[str, Any]:
        tokens = [rng.randint(3, 90) for _ in range(length)]
        return {"request": name, "prompt_tokens": tokens, "max_new_tokens": answer} | {
            "arrival_step": step,
            "ignore_eos": True,
        }

    listed = [prompt(f"r{i}", rng.randint(2, 7), 1 + 8 * i, 8) for i in range(QUIET)]
    listed += [prompt("alice", 40, 301, 30), prompt("bob", 40, 304, 30)]
    path = tmp_path_factory.mktemp("prompts") / "late.jsonl"
    path.write_text("".join(json.dumps(p) + "\n" for p in listed))
    return path


def record(prompts: Path, out: Path, *more: str) -> int:
    return run(
        ["record", "--model", "symbolic", "--prompts", str(prompts), "--out", str(out), *more]
    )


def report(trace: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = run(["check", str(trace), "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def root(found: dict[str, Any]) -> tuple[Any, ...]:
    (first,) = [f for f in found["findings"] if f["root"]]
    return first["check"], first["class"], first["culprit_seq"], first["decision"], first["victim"]


def test_the_frozen_ring_shows_the_incident_as_the_whole_trace_does(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring, whole = tmp_path / "ring.kvtrace", tmp_path / "whole.kvtrace"
    fault = ("--fault", "key-length-only")
    assert record(prompts, ring, "--ring", "20steps", *fault) == 0
    told = capsys.readouterr().err
    assert told.count("was frozen at") == 1
    assert "identity at 304:" in told
    assert record(prompts, whole, *fault) == 0
    status, of_ring = report(ring, capsys)
    _, of_whole = report(whole, capsys)
    assert status == 1
    assert of_ring["verdict"] == of_whole["verdict"] == "contaminated"
    assert root(of_ring) == root(of_whole)
    assert any("had left the ring" in sentence for sentence in of_ring["missing"])
    assert 2 * ring.stat().st_size < whole.stat().st_size
    assert run(["check", str(ring)]) == 1
    assert "ALLOWED by" in capsys.readouterr().out
    assert run(["info", str(ring)]) == 0
    told = capsys.readouterr().out
    assert "identity at 304:" in told
    assert "ring" in told


def test_where_the_cause_has_left_the_ring_that_is_said_and_nobody_else_is_blamed(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = tmp_path / "ring.kvtrace"
    more = ("--ring", "4steps", "--on-finding", "log", "--fault", "key-length-only")
    assert record(prompts, ring, *more) == 0
    status, found = report(ring, capsys)
    assert (status, found["verdict"]) == (1, "contaminated")
    for finding in found["findings"]:
        assert finding["culprit_seq"] is None
        assert "had left the ring" in finding["explanation"]
    assert run(["check", str(ring)]) == status


def test_a_ring_of_a_sound_run_is_whole_as_a_file_and_not_called_clean(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = tmp_path / "ring.kvtrace"
    assert record(prompts, ring, "--ring", "50steps") == 0
    assert "frozen" not in capsys.readouterr().err
    status, found = report(ring, capsys)
    assert (status, found["verdict"], found["findings"]) == (4, "incomplete", [])
    (missing,) = found["missing"]
    assert "had left the ring" in missing
    assert run(["replay", str(ring)]) == 2
    assert "can't be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--ring", "many"), "--ring takes"),
        (("--ring", "0steps"), "--ring takes"),
        (("--when-full", "wait"), "drop-and-mark"),
        (("--buffer", "0"), "--buffer must be at least 1"),
    ],
)
def test_what_cannot_be_kept_so_is_refused_before_anything_is_written(
    option: tuple[str, ...],
    says: str,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run.kvtrace"
    assert record(prompts, out, *option) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


def test_with_no_room_to_wait_in_steps_are_dropped_and_the_user_told_once(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.kvtrace"
    assert record(prompts, out, "--when-full", "drop-and-mark", "--buffer", "1") == 0
    told = capsys.readouterr().err
    status, found = report(out, capsys)
    assert told.count("found no room") == 1
    assert (status, found["verdict"], found["findings"]) == (4, "incomplete", [])
    assert any("were dropped" in sentence for sentence in found["missing"])
