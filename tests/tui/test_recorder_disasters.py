"""Whatever happens to the file: the run says the same, and the user is told once."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.runner import StepOutput
from kvrewind.engine.symbolic import SymbolicRunner
from kvrewind.tui.cli import run

COMMAND = (
    *(sys.executable, "-c", "from kvrewind.tui.cli import main; main()"),
    *("record", "--model", "symbolic"),
)
Capture = pytest.CaptureFixture[str]


def record(out: Path, *more: str) -> int:
    return run(["record", "--model", "symbolic", "--out", str(out), *more])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said where nothing happens."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert record(tmp_path_factory.mktemp("sound") / "sound.kvtrace") == 0
    assert "rolune" in said.getvalue()
    return said.getvalue()


@pytest.fixture
def in_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Do something while that step is computed, once."""
    execute = SymbolicRunner.execute

    def arrange(step: int, happen: Callable[[], object]) -> None:
        def executing(self: SymbolicRunner, inputs: StepInputs) -> StepOutput:
            if inputs.step == step:
                monkeypatch.setattr(SymbolicRunner, "execute", execute)
                happen()
            return execute(self, inputs)

        monkeypatch.setattr(SymbolicRunner, "execute", executing)

    return arrange


def mounted(folder: Path, options: str) -> Iterator[Path]:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    yield from mounted(folder, "size=120k")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "locked"
    folder.mkdir()
    if os.geteuid() == 0:  # whom permissions don't stop
        yield from mounted(folder, "size=1m,ro")
        return
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_a_full_disk_changes_no_token_and_is_told_once(
    small_disk: Path, answers: str, capfd: Capture
) -> None:
    trace = small_disk / "run.kvtrace"
    assert record(trace) == 0
    out, err = capfd.readouterr()
    assert out == answers
    assert err.count("stopped: database or disk is full") == 1
    assert err.count("free the disk or choose another place") == 1
    assert run(["check", str(trace)]) == 4
    assert "not recorded to its end" in capfd.readouterr().err


@pytest.mark.parametrize("size", ["140k", "160k", "180k", "200k", "220k"])
def test_a_disk_that_is_full_at_the_end_is_told_of_if_anything_is_missing(
    size: str, tmp_path: Path, answers: str, capfd: Capture
) -> None:
    for folder in mounted(tmp_path, f"size={size}"):
        trace = folder / "run.kvtrace"
        assert record(trace) == 0
        out, err = capfd.readouterr()
        assert out == answers
        stopped = "stopped: database or disk is full" in err
        assert run(["check", str(trace)]) == (4 if stopped else 0)
        capfd.readouterr()


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


def test_a_file_that_may_not_grow_changes_no_token_and_is_told_once(
    tmp_path: Path, answers: str
) -> None:
    trace = tmp_path / "run.kvtrace"
    ran = subprocess.run(
        [*COMMAND, "--out", str(trace)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_files,
    )
    assert (ran.returncode, ran.stdout) == (0, answers)
    assert ran.stderr.count("stopped: ") == 1
    assert "the run itself is unaffected" in ran.stderr
    assert run(["check", str(trace)]) == 4


def test_a_directory_that_cannot_be_written_to_is_refused_before_the_run(
    read_only: Path, capfd: Capture
) -> None:
    assert record(read_only / "run.kvtrace") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "run.kvtrace can't be created: " in err
    assert "choose a place" in err


def test_a_deleted_file_changes_no_token_and_is_told_once(
    tmp_path: Path,
    answers: str,
    capfd: Capture,
    in_step: Callable[[int, Callable[[], object]], None],
) -> None:
    trace = tmp_path / "run.kvtrace"
    in_step(9, trace.unlink)
    assert record(trace) == 0
    out, err = capfd.readouterr()
    assert out == answers
    assert err.count("the file was removed or replaced meanwhile") == 1
    assert not trace.exists()


def test_a_second_writer_is_refused_and_the_first_goes_on(
    tmp_path: Path,
    answers: str,
    capfd: Capture,
    in_step: Callable[[int, Callable[[], object]], None],
) -> None:
    trace = tmp_path / "run.kvtrace"
    statuses: list[int] = []
    in_step(9, lambda: statuses.append(record(trace)))
    assert record(trace) == 0
    out, err = capfd.readouterr()
    assert statuses == [2]
    assert out == answers
    assert err.count("run.kvtrace exists already") == 1
    assert "stopped" not in err
    assert run(["check", str(trace)]) == 0


def test_a_second_writer_that_is_forced_takes_the_name_and_the_first_run_says_the_same(
    tmp_path: Path,
    answers: str,
    capfd: Capture,
    in_step: Callable[[int, Callable[[], object]], None],
) -> None:
    trace = tmp_path / "run.kvtrace"
    statuses: list[int] = []
    in_step(9, lambda: statuses.append(record(trace, "--force")))
    assert record(trace) == 0
    out, err = capfd.readouterr()
    assert statuses == [0]
    assert out == 2 * answers
    assert err.count("the file was removed or replaced meanwhile") == 1
    assert run(["check", str(trace)]) == 0, "the second one's trace"


def test_a_directory_that_is_locked_meanwhile_costs_nothing(
    tmp_path: Path,
    answers: str,
    capfd: Capture,
    in_step: Callable[[int, Callable[[], object]], None],
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    in_step(9, lambda: folder.chmod(0o555))
    assert record(folder / "run.kvtrace") == 0
    out, err = capfd.readouterr()
    folder.chmod(0o755)
    assert out == answers
    assert "stopped" not in err
    assert run(["check", str(folder / "run.kvtrace")]) == 0
