"""No command writes over what it reads, not even with --force, nor leaves half a file behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.recorder.events import SpanDropped
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.tui.cli import run


@pytest.fixture
def leak(trace_of: Callable[..., Path], tmp_path: Path) -> Path:
    copy = tmp_path / "leak.kvtrace"
    copy.write_bytes(trace_of("leak").read_bytes())
    return copy


@pytest.mark.parametrize(
    "command",
    [
        ["redact"],
        ["bundle"],
        ["bundle", "--clear"],
        ["export", "--format", "jsonl"],
        ["export", "--format", "html"],
        ["replay"],
        ["import"],
        ["record", "--model", "symbolic", "--prompts"],
    ],
    ids=" ".join,
)
def test_what_is_read_is_never_written_over(
    command: list[str], leak: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = leak.read_bytes()
    assert run([*command, str(leak), "--out", str(leak), "--force"]) == 2
    assert f"{leak} is what is read; choose another name" in capsys.readouterr().err
    assert leak.read_bytes() == before


def test_nor_by_another_name(leak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = leak.read_bytes()
    link = leak.with_name("link.kvtrace")
    link.symlink_to(leak)
    assert run(["merge", str(leak), str(leak), "--out", str(link), "--force"]) == 2
    assert run(["redact", str(link), "--out", str(leak), "--force"]) == 2
    assert capsys.readouterr().err.count("is what is read") == 2
    assert leak.read_bytes() == before


def test_a_merge_that_fails_leaves_nothing_behind(
    leak: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = leak.with_name("ring.kvtrace")
    with TraceReader(leak) as reader, TraceWriter(ring) as writer:
        envelopes = list(reader.envelopes())
        dropped = SpanDropped(first_seq=1, count=99, why="ring", state="no state at all")
        writer.write_envelopes(
            [envelopes[0], envelopes[100]._replace(event=dropped), *envelopes[101:]]
        )
    both = leak.with_name("both.kvtrace")
    assert run(["merge", str(leak), str(ring), "--out", str(both)]) == 2
    assert "the state at the ring's beginning can't be read" in capsys.readouterr().err
    assert not both.exists()


@pytest.mark.parametrize(
    "command",
    [["record", "--model", "symbolic"], ["redact"], ["bundle"], ["merge"], ["import"], ["replay"]],
    ids=" ".join,
)
def test_what_is_no_file_is_not_replaced_by_one(
    command: list[str], leak: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = leak.with_name("pipe")
    os.mkfifo(pipe)
    lines = leak.with_name("leak.jsonl")
    assert run(["export", str(leak), "--out", str(lines)]) == 0
    inputs = {"record": [], "merge": [str(leak), str(leak)], "import": [str(lines)]}
    arguments = inputs.get(command[0], [str(leak)])
    assert run([*command, *arguments, "--out", str(pipe), "--force"]) == 2
    assert (
        f"{pipe} can't be created: it is there already, and is no file" in capsys.readouterr().err
    )
    assert pipe.is_fifo()
