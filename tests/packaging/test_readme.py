"""The commands of the README do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from kvrewind.tui.cli import run

ROOT = Path(__file__).parents[2]
STATUSES = {"check": (0, 1), "bisect": (0, 1)}
NEEDS_A_TERMINAL = ("open",)


def commands() -> list[tuple[list[str], list[str]]]:
    """Each command with the lines that it is said to print."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((shlex.split(line[2:]), []))
            elif line != "...":
                found[-1][1].append(line)
    return found


def test_the_commands_of_the_readme_work_and_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the simulator, so that it takes no model; the models have tests of their own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    ours = [(command[1:], promised) for command, promised in commands() if command[0] == "kvrewind"]
    assert len(ours) >= 8
    bisected = ""
    for command, promised in ours:
        if command[0] in NEEDS_A_TERMINAL:
            continue
        if command[0] == "record":
            command = [*_without_model(command), "--model", "symbolic"]
        status = run(command)
        told = capsys.readouterr()
        assert status in STATUSES.get(command[0], (0,)), (command, told)
        printed = {" ".join(line.split()) for line in told.out.splitlines()}
        assert {" ".join(line.split()) for line in promised} <= printed, command
        bisected += told.out if command[0] == "bisect" else ""
    assert "culprit: share:r1" in bisected


def _without_model(command: list[str]) -> list[str]:
    if "--model" not in command:
        return command
    at = command.index("--model")
    return command[:at] + command[at + 2 :]


def test_the_two_commands_of_a_fresh_machine_are_named() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_pictures_and_pages_that_the_readme_shows_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text) + re.findall(r"`(docs/[^`]+)`", text):
        assert (ROOT / path).is_file(), path
