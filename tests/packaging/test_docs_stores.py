"""What docs/recording.md says of stores and of ranks is so."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvrewind.tui.cli import run
from sqlalchemy import create_engine, text

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"
DATABASE = "postgresql+psycopg://recorder@db/fleet"

sys.path.insert(0, str(Path(__file__).parents[1] / "recorder"))
from postgres_server import NoPostgres, PostgresServer  # noqa: E402


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database in place of the page's."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'fleet.db'}"
        return
    try:
        server = PostgresServer()
    except NoPostgres as why:
        pytest.skip(str(why))
    server.start()
    yield server.database()
    server.stop()
    server.remove()


def section(title: str) -> str:
    found = re.search(
        rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found.group(1)


def commands(title: str) -> Iterator[tuple[list[str], list[str]]]:
    """The arguments of each command, with the lines that it is said to print."""
    for block in re.findall(r"```console\n(.*?)```", section(title), re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, *told = part.splitlines()
            program, *arguments = shlex.split(command)
            assert program == "kvrewind"
            yield arguments, told


def test_a_fleets_commands_and_queries_work(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, _ in commands("A fleet's store"):
        given = [argument.replace(DATABASE, database) for argument in arguments]
        assert run(given) == (1 if arguments[0] == "check" else 0), arguments
    (queries,) = re.findall(r"```sql\n(.*?)```", section("A fleet's store"), re.DOTALL)
    engine = create_engine(database)
    with engine.connect() as connection:
        found = [connection.execute(text(q)).all() for q in queries.split(";") if q.strip()]
    engine.dispose()
    assert len(found[0]) > 3
    assert {row.name for row in found[1]} >= {"leak"}
    capsys.readouterr()


def test_ranks_are_merged_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, promised in commands("Several ranks"):
        capsys.readouterr()
        assert run(arguments) == (1 if arguments[0] == "check" else 0), arguments
        told = capsys.readouterr()
        lines = (told.out + told.err).splitlines()
        for line in promised:
            pattern = re.escape(line).replace(re.escape("..."), ".*")
            assert any(re.fullmatch(pattern, said.rstrip()) for said in lines), (line, lines)
