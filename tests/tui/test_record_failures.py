"""A run in which steps raise: recorded to its end, and told on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.runner import StepOutput
from kvrewind.engine.symbolic import SymbolicRunner
from kvrewind.tui.cli import run


@pytest.fixture
def steps_2_and_9_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = SymbolicRunner.execute

    def failing(self: SymbolicRunner, inputs: StepInputs) -> StepOutput:
        output = execute(self, inputs)
        if inputs.step in (2, 9):
            raise RuntimeError("out of memory\x1b[31m")
        return output

    monkeypatch.setattr(SymbolicRunner, "execute", failing)


@pytest.mark.usefixtures("steps_2_and_9_raise")
def test_which_requests_failed_in_which_step_and_why_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tmp_path / "failed.kvtrace")
    assert run(["record", "--model", "symbolic", "--out", trace]) == 1
    told = capsys.readouterr().err
    assert "failed: r0, r1, r2: step 2 raised RuntimeError: out of memory" in told
    assert "failed: r3, r4, r5, r6, r7: step 9 raised RuntimeError: out of memory" in told
    assert "\x1b" not in told
    assert run(["check", trace]) == 0, "the trace is whole, and nothing leaked"


def test_a_run_without_failures_tells_of_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tmp_path / "sound.kvtrace")
    assert run(["record", "--model", "symbolic", "--out", trace]) == 0
    assert "failed" not in capsys.readouterr().err
