"""What docs/recording.md says of rings is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from kvrewind.tui.cli import run

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")


def test_its_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (section,) = re.findall(r"^## Leave it on: a ring\n(.*?)^## ", PAGE, re.DOTALL | re.M)
    (console,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    told = ""
    for line in console.splitlines():
        if line.startswith("$ kvrewind "):
            status = run(shlex.split(line)[2:])
            assert status == (1 if " check " in line else 0)
            captured = capsys.readouterr()
            told = captured.out + captured.err
        else:
            assert re.search(re.escape(line).replace(re.escape("..."), ".*"), told), line
