"""What docs/recording.md says of privacy is so."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvrewind.tui.cli import run

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"
STATUSES = {"check": 1, "bisect": 1}
"""The run that the page records leaks."""


def section() -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^## Privacy\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


def commands() -> Iterator[tuple[list[str], list[str]]]:
    """Each command with the lines that it is said to print."""
    for block in re.findall(r"```console\n(.*?)```", section(), re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, *told = part.splitlines()
            yield shlex.split(command), [line for line in told if line != "..."]


def test_its_commands_work_and_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []
    for (program, *arguments), promised in commands():
        if program == "head":  # makes a key of random bytes
            Path(arguments[-1]).write_bytes(secrets.token_bytes(32))
            continue
        assert program == "kvrewind"
        assert run(arguments) == STATUSES.get(arguments[0], 0), arguments
        told = capsys.readouterr()
        assert set(promised) <= {*told.out.splitlines(), *told.err.splitlines()}, arguments
        ran.append(arguments[0])
    assert {"record", "check", "bisect", "redact", "bundle"} <= set(ran)


def test_its_limits_are_those_of_the_program() -> None:
    told = " ".join(section().split())
    for named in ("--redact=all", "--what all", "--redact-key", "--clear", "key_id", "63 bits"):
        assert named in told
