"""`kvrewind tail` tells what a run does while another process records it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.tui.cli import run
from live import LEAK, LiveWriter

LAST_STEP = list(read_jsonl(LEAK))[-1].step


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live.kvtrace"


@pytest.fixture
def live(path: Path) -> Iterator[LiveWriter]:
    writer = LiveWriter(path, LEAK)
    yield writer
    writer.kill()


class Tail:
    """The command in a process of its own, read line by line."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from kvrewind.tui.cli import main; main()", "tail"]
            + [str(argument) for argument in arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line, when it comes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def rest(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err
        return self.process.returncode, out, err


@pytest.fixture
def tail():
    started: list[Tail] = []

    def start(*arguments: object) -> Tail:
        started.append(Tail(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def told(capsys, *arguments: object) -> tuple[int, list[str], str]:
    """Status, lines on standard output, and standard error, of a trace that doesn't grow."""
    capsys.readouterr()
    status = run(["tail", *map(str, arguments)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out.splitlines(), captured.err


def test_a_step_is_told_while_the_next_one_runs(live: LiveWriter, path: Path, tail) -> None:
    live.until(2)
    following = tail(path)
    assert [following.line().split()[1] for _ in range(3)] == ["0", "1", "2"]
    live.until(3)
    assert "r3, r4 arrive · 5 rows: 22 prefill, 3 decode" in following.line()
    live.until(LAST_STEP)
    status, out, err = following.rest()
    assert (status, len(out.splitlines())) == (0, LAST_STEP - 3)
    assert "r1 ends (eos)" in out
    assert out.splitlines()[-1].endswith("RunEnded completed")
    assert f"the run ended in step {LAST_STEP}" in err
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_it_waits_for_a_file_if_told_to(path: Path, tail) -> None:
    following = tail(path, "--wait", "--kind", "RequestFinished")
    assert following.process.stderr is not None
    assert following.process.stderr.readline() == f"waiting for {path}\n"
    writer = LiveWriter(path, LEAK)
    writer.until(LAST_STEP)
    writer.kill()
    status, out, _ = following.rest()
    assert status == 0
    assert len(out.splitlines()) == 9
    assert "r1 finishes (eos)" in out


def test_a_killed_writer_is_noticed(live: LiveWriter, path: Path, tail) -> None:
    live.until(5)
    following = tail(path, "--last", "1")
    assert following.line().startswith("step 5 ")
    live.kill()
    status, out, err = following.rest()
    assert (status, out) == (4, "")
    assert "nobody writes it any more, and the run did not end" in err
    assert "valid up to its last step, 5" in err


def test_ctrl_c_stops_following_and_nothing_else(live: LiveWriter, path: Path, tail) -> None:
    live.until(1)
    following = tail(path)
    assert following.line()
    following.process.send_signal(signal.SIGINT)
    assert following.rest()[0] == 130
    live.until(2)


def test_findings_are_told_with_the_step_that_makes_them(
    live: LiveWriter, path: Path, tail
) -> None:
    live.until(2)
    following = tail(path, "--check", "--from", "2:")
    assert following.line().endswith("4 findings so far\n")
    live.kill()
    status, _, err = following.rest()
    assert status == 1
    assert "finding: identity F01 root at 2:41" in err
    assert "contaminated, 4 findings" in err
    assert "next: kvrewind check" in err


def test_a_clean_run_that_ended_is_no_finding(trace_of, capsys) -> None:
    status, lines, err = told(capsys, trace_of("clean"), "--check")
    assert (status, "clean, 0 findings" in err) == (0, True)
    assert len(lines) == LAST_STEP + 1


def test_json_lines_are_the_trace(trace_of, tmp_path: Path, capsys) -> None:
    status, lines, _ = told(capsys, trace_of("leak"), "--format", "json")
    assert status == 0
    told_lines, exported = tmp_path / "tail.jsonl", tmp_path / "export.jsonl"
    told_lines.write_text("\n".join(lines) + "\n")
    run(["import", str(told_lines), "--out", str(tmp_path / "again.kvtrace")])
    run(["export", str(tmp_path / "again.kvtrace"), "--out", str(exported)])
    assert exported.read_text() == told_lines.read_text()


def test_filters_choose_events(trace_of, capsys) -> None:
    def events(*arguments: object) -> list[dict]:
        return [json.loads(line) for line in told(capsys, *arguments, "--format", "json")[1]]

    leak = trace_of("leak")
    every = events(leak)
    kinds = events(leak, "--kind", "BlockShared,BlockFreed")
    assert kinds == [e for e in every if e["kind"] in ("BlockShared", "BlockFreed")]
    assert len(kinds) > 10
    of_r1 = events(leak, "--request", "r1")
    assert {e["kind"] for e in of_r1} > {"RequestAdded", "BlockShared", "InputsBuilt"}
    assert all("r1" in json.dumps(e) for e in of_r1)
    of_block = events(leak, "--block", "2")
    assert {e["kind"] for e in of_block} > {"BlockAllocated", "InputsBuilt", "SlotsWritten"}
    written = [e for e in of_block if e["kind"] == "SlotsWritten"]
    assert all(any(32 <= slot < 48 for slot in e["slots"]) for e in written)
    assert events(leak, "--request", "nobody") == []


def test_filters_and_positions_go_together(trace_of, capsys) -> None:
    _, lines, _ = told(capsys, trace_of("leak"), "--from", "9:", "--kind", "TokensSampled")
    assert len(lines) == LAST_STEP - 8
    assert lines[0].split()[1] == "TokensSampled"
    assert "“" in lines[0]  # the text of tokens was defined before
    _, lines, _ = told(capsys, trace_of("leak"), "--last", "2")
    assert [line.split()[1] for line in lines] == [str(LAST_STEP - 1), str(LAST_STEP)]
    _, lines, _ = told(capsys, trace_of("leak"), "--last", "1000", "--events")
    assert lines[0].split()[:2] == ["0:0", "RunStarted"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kind", "BlockFred"), "--kind: there is no event 'BlockFred'; did you mean BlockFreed"),
        (("--from", "9:1"), "did you mean"),
        (("--from", "900:"), "no event of step 900"),
        (("--last", "0"), "--last must be at least 1"),
        (("--idle", "nan"), "--idle must be a number of seconds above 0"),
        (("--idle", "-1"), "--idle must be a number of seconds above 0"),
        (("--from", "3:", "--last", "3"), "give one of them"),
        (("--block", "two"), "give a whole number"),
        (("--block", "-1"), "--block must be the number of a block"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, said, trace_of, capsys) -> None:
    status, lines, err = told(capsys, trace_of("leak"), *arguments)
    assert (status, lines) == (2, [])
    assert said in err


def test_a_file_that_is_not_there_is_not_waited_for_unless_told(path: Path, capsys) -> None:
    status, lines, err = told(capsys, path)
    assert (status, lines) == (2, [])
    assert "--wait" in err


def test_what_a_trace_says_does_nothing_to_the_terminal(tmp_path: Path, capsys) -> None:
    lines, trace = tmp_path / "a.jsonl", tmp_path / "a.kvtrace"
    lines.write_text(
        '{"kind": "RequestAdded", "step": 1, "request": "\\u001b[31mr", "prompt_tokens": [1], '
        '"max_new_tokens": 1}\n{"kind": "RunEnded", "step": 1, "reason": "\\u001b]0;x"}\n'
    )
    run(["import", str(lines), "--out", str(trace)])
    for options in ((), ("--events",)):
        status, shown, _ = told(capsys, trace, *options)
        assert status == 0
        assert "\x1b" not in "".join(shown)
        assert "�[31mr" in "".join(shown)
