"""The commands and the code of docs/recording.md do what it says, and it leaves out no metric."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from kvrewind.tui.cli import run
from kvrewind.tui.metrics import Gauges, RecorderUse

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")
OURS = ("Checks while the run goes on", "Metrics", "What a trace holds")
"""The sections that are tested here, in their order: a later one may use an earlier one's trace."""


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.M)
    return text


def blocks(kind: str, title: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", section(title), re.DOTALL)


def words(line: str) -> str:
    return " ".join(line.split())


def test_its_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.chdir(tmp_path)
    for block in (block for title in OURS for block in blocks("console", title)):
        command, *promised = block.splitlines()
        assert command.startswith("$ kvrewind ")
        capsys.readouterr()
        assert run(shlex.split(command)[2:]) == 0
        told = capsys.readouterr()
        lines = [words(line) for line in (told.out + told.err).splitlines()]
        for line in promised:
            pattern = re.escape(words(line)).replace(re.escape("..."), ".*")
            assert any(re.fullmatch(pattern, said) for said in lines), line


def test_its_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python", OURS[0])
    exec(compile(code, "docs/recording.md", "exec"), {})
    assert capsys.readouterr().out == "clean\n"
    assert (tmp_path / "served.kvtrace").exists()


def test_every_metric_is_in_its_table() -> None:
    pytest.importorskip("prometheus_client")
    gauges = Gauges()
    gauges.restart(dict)
    gauges.recorder = lambda: RecorderUse(1, 2, 3, 4)
    names = {
        metric.name + ("_total" if metric.type == "counter" else "") for metric in gauges.collect()
    }
    assert len(names) > 10
    documented = set(re.findall(r"`(kvrewind_[a-z_]+)(?:\{[a-z,]+\})?`", section("Metrics")))
    assert documented == names
