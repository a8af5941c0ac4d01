"""Bad input gets one clear sentence on standard error, status 2, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvrewind.recorder.reader import TraceReader
from kvrewind.tui.cli import run


@pytest.fixture
def trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "run.kvtrace"
    assert run(["record", "--model", "symbolic", "--out", str(path)]) == 0
    capsys.readouterr()
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What standard error says; standard output must stay empty, and the status is 2."""
    capsys.readouterr()
    assert run([str(a) for a in arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert len(told.err.strip().splitlines()) == 1
    return told.err


def test_a_missing_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.kvtrace"
    assert "no-such-model" in refused(capsys, "record", "--model", "no-such-model", "--out", out)
    assert not out.exists()


def test_a_directory_that_holds_no_model(tmp_path: Path, capsys) -> None:
    assert str(tmp_path) in refused(capsys, "record", "--model", tmp_path, "--out", "x.kvtrace")
    assert not Path("x.kvtrace").exists()


@pytest.mark.parametrize("command", ["check", "replay", "bisect", "info", "open", "export"])
def test_a_file_that_is_not_a_trace(command: str, tmp_path: Path, capsys) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a trace\n" * 100)
    assert "is not a kvrewind trace" in refused(capsys, command, text)
    assert "there is no such file" in refused(capsys, command, tmp_path / "nowhere.kvtrace")


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_trace_cut_in_half_is_judged_as_far_as_it_goes(
    share: float, trace: Path, tmp_path: Path, capsys
) -> None:
    half = tmp_path / "half.kvtrace"
    whole = trace.read_bytes()
    half.write_bytes(whole[: int(len(whole) * share)])
    status = run(["check", str(half)])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert (status, "half.kvtrace" in told.err) in ((4, True), (2, True))
    if status == 4:
        assert "incomplete" in told.out


def test_an_unknown_fault_or_switch(tmp_path: Path, capsys) -> None:
    out = tmp_path / "a.kvtrace"
    base = ("record", "--model", "symbolic", "--out", out)
    assert "key-lenght-only" in refused(capsys, *base, "--fault", "key-lenght-only")
    assert "--warp" in refused(capsys, *base, "--warp", "9")
    assert "attention" in refused(capsys, *base, "--attention", "flash")
    assert "num_blocks" in refused(capsys, *base, "--num-blocks", "0")
    assert "nonesuch" in refused(capsys, "record", "--scenario", "nonesuch", "--out", out)
    assert "frobnicate" in refused(capsys, "frobnicate")
    assert not out.exists()


def test_a_prompt_longer_than_the_pool(tmp_path: Path, capsys) -> None:
    prompts, out = tmp_path / "p.txt", tmp_path / "a.kvtrace"
    prompts.write_text("the sea is calm . " * 60)
    told = refused(
        capsys, "record", "--model", "symbolic", "--prompts", prompts, "--num-blocks", 4,
        "--out", out,
    )  # fmt: skip
    assert "'r0' needs" in told
    assert "the pool has 4" in told
    assert not out.exists()


def test_a_prompts_file_with_a_bad_line(tmp_path: Path, capsys) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    told = refused(capsys, "record", "--model", "symbolic", "--prompts", prompts)
    assert "line 2" in told
    assert "did you mean 'prompt'" in told


def test_an_output_that_exists_is_kept(trace: Path, tmp_path: Path, capsys) -> None:
    before = trace.read_bytes()
    assert "--force" in refused(capsys, "record", "--model", "symbolic", "--out", trace)
    lines = tmp_path / "a.jsonl"
    lines.write_text("precious")
    assert "--force" in refused(capsys, "export", trace, "--out", lines)
    assert "--force" in refused(capsys, "import", lines, "--out", trace)
    assert "--force" in refused(capsys, "replay", trace, "--only", "r1", "--out", trace)
    assert (trace.read_bytes(), lines.read_text()) == (before, "precious")
    assert run(["export", str(trace), "--out", str(lines), "--force"]) == 0
    assert lines.read_text().startswith("{")


def test_a_bad_line_of_an_import_is_named_and_nothing_is_written(tmp_path: Path, capsys) -> None:
    lines, out = tmp_path / "a.jsonl", tmp_path / "a.kvtrace"
    lines.write_text(
        '{"kind": "RunEnded", "step": 0, "reason": "x"}\n{"kind": "Nonesuch", "step": 1}'
    )
    told = refused(capsys, "import", lines, "--out", out)
    assert "a.jsonl" in told
    assert "line 2" in told
    assert not out.exists()


def test_a_position_or_request_that_is_not_there(trace: Path, capsys) -> None:
    assert "no event 99999" in refused(capsys, "open", trace, "99:99999")
    assert "'nobody'" in refused(capsys, "replay", trace, "--only", "nobody")
    assert "'nobody'" in refused(capsys, "bisect", trace, "--victim", "nobody")


def test_no_new_tokens_at_all(capsys) -> None:
    assert "at least 1" in refused(capsys, "record", "--max-new-tokens", "0")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("record --max-new-tokens 1.5", "--max-new-tokens: give a whole number"),
        ("record --poisson rate=1 --first 2.5", "--first: give a whole number"),
        ("simulate --max-new-tokens many", "--max-new-tokens: give a whole number"),
        ("record --model symbolic --device cuda", "device must be cpu or auto"),
    ],
)
def test_numbers_and_devices_that_would_be_taken_for_others(command, said, capsys) -> None:
    assert said in refused(capsys, *command.split())


def test_a_trace_of_another_engine_cannot_be_reexecuted(tmp_path: Path, trace: Path, capsys):
    lines, other = tmp_path / "a.jsonl", tmp_path / "b.kvtrace"
    run(["export", str(trace), "--out", str(lines)])
    lines.write_text(lines.read_text().replace('"engine":"kvrewind"', '"engine":"other"'))
    assert run(["import", str(lines), "--out", str(other)]) == 0
    assert "written by other" in refused(capsys, "replay", other)
    assert "written by other" in refused(capsys, "bisect", other)
    assert run(["check", str(other)]) == 0


def test_ctrl_c_leaves_a_valid_incomplete_trace(tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "a.kvtrace"
    line = '{{"prompt": "the sea", "request": "q{0}", "max_new_tokens": 900, "ignore_eos": true}}'
    prompts.write_text("\n".join(line.format(i) for i in range(40)))
    command = [
        sys.executable, "-c", "from kvrewind.tui.cli import main; main()", "record",
        "--model", "symbolic", "--prompts", str(prompts), "--num-blocks", "4000", "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ, text=True)
    while not _has_steps(out):
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "incomplete" in told
    assert "Traceback" not in told
    with TraceReader(out) as reader:
        assert not reader.complete
        assert reader.last_step >= 3
    assert run(["check", str(out)]) == 4
    assert run(["replay", str(out), "--verify"]) == 0


def test_ctrl_c_while_modules_load_ends_quietly() -> None:
    script = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "kvrewind.tui.commands":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
from kvrewind.tui.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def _has_steps(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with TraceReader(path) as reader:
            return reader.last_step >= 3
    except Exception:  # not yet a trace
        return False
