"""The commands of "Follow a run" in docs/recording.md do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from kvrewind.tui.cli import run
from kvrewind.tui.commands.tail import tail

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")
(SECTION,) = re.findall(r"^## Follow a run\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"```console\n(.*?)```", SECTION, re.DOTALL)


def words(line: str) -> str:
    return " ".join(line.split())


def test_its_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 4
    for block in BLOCKS:
        promised: list[str] = []
        told: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ kvrewind "):
                told += told_by(line, capsys)
            else:
                promised.append(line)
        for line in promised:
            pattern = re.escape(words(line)).replace(re.escape("..."), ".*")
            assert any(re.fullmatch(pattern, said) for said in told), line
    assert (tmp_path / "again.kvtrace").exists()


def told_by(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a command of the page says; `> FILE` behind it takes what is data."""
    command, _, file = line.removeprefix("$ kvrewind ").partition(" > ")
    capsys.readouterr()
    status = run(shlex.split(command))
    assert status == (1 if "--check" in command else 0)
    captured = capsys.readouterr()
    if file:
        Path(file).write_text(captured.out, encoding="utf-8")
    return [words(said) for said in (captured.out + captured.err).splitlines()]


def test_its_table_has_every_way_to_begin_and_to_end() -> None:
    options = {"--from", "--last", "--wait", "--idle", "--check", "--events", "--request"}
    assert all(f"`{option}" in SECTION for option in options | {"--format json", "--block"})
    statuses = re.findall(r"^\| (\d+) \|", SECTION, re.MULTILINE)
    assert statuses == ["0", "1", "4", "130"]
    assert all(f"{status} " in (tail.__doc__ or "") for status in statuses)
