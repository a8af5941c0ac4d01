"""The commands and the code of docs/exports.md work, in its order, and say what it says."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from kvrewind.replay.exports.parquet import COLUMNS, ENVELOPE, REST
from kvrewind.tui.cli import run
from kvrewind.tui.commands.export import ExportFormat

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"
STATUSES = {"check": 1}


class Piece(NamedTuple):
    """A fenced block: a command line with what it prints, or code."""

    language: str
    text: str


def pieces() -> list[Piece]:
    found = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [Piece(*piece) for piece in found]


def commands(text: str) -> list[tuple[list[str], list[str]]]:
    found: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line[2:]), []))
        else:
            found[-1][1].append(line.strip())
    return found


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Path:
    """The folder in which every command of the page has run."""
    if find_spec("pyarrow") is None:
        pytest.skip('needs the extra: pip install "kvrewind[parquet]"')
    monkeypatch.chdir(tmp_path)
    ran = 0
    for piece in pieces():
        for words, promised in commands(piece.text) if piece.language == "console" else ():
            assert words[0] == "kvrewind"
            capsys.readouterr()
            assert run(words[1:]) == STATUSES.get(words[1], 0), words
            printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
            assert set(promised) <= set(printed), words
            ran += 1
    assert ran >= 7
    return tmp_path


def test_every_command_of_the_page_works_and_writes_what_it_names(done: Path) -> None:
    suffixes = {path.suffix for path in done.iterdir()}
    assert suffixes == {".kvtrace", ".jsonl", ".json", ".html", ".parquet"}


@pytest.mark.parametrize("piece", [n for n, p in enumerate(pieces()) if p.language == "python"])
def test_the_code_of_the_page_prints_what_it_says(piece: int, done: Path, capsys) -> None:
    code, output = pieces()[piece : piece + 2]
    (library,) = re.findall(r"^import (\w+)$", code.text, re.MULTILINE)
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    capsys.readouterr()
    exec(compile(code.text, str(PAGE), "exec"), {})
    assert output == ("text", capsys.readouterr().out)


def test_every_format_has_its_line_and_every_column_its_type() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in get_args(ExportFormat):
        assert re.search(rf"^\| `{name}` \|", text, re.MULTILINE)
        assert f"--format {name} " in text
    (table,) = re.findall(r"\| columns \| type \|\n(.*?)\n\n", text, re.DOTALL)
    named = set(re.findall(r"`(\w+)`", table))
    assert named == {*ENVELOPE, *(column.name for column in COLUMNS), REST}
