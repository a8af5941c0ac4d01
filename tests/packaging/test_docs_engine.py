"""The commands of docs/engine.md do what it says, and no switch is left out of it."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.decisions import BUILDERS
from kvrewind.engine.workloads.spec import PromptSpec
from kvrewind.recorder.events import KINDS, DecisionMade
from kvrewind.recorder.reader import TraceReader
from kvrewind.replay.check import check
from kvrewind.tui.cli import run

ROOT = Path(__file__).parents[2]
EXAMPLE = "An example at numbered positions"
PARTS = ("Data structure", "Operations", EXAMPLE, "Mechanisms")
MEASURED = "kvrewind perplexity"
"""What it prints depends on the version of torch, but for the words."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, the one command below it, the lines of its output, and what decides."""

    title: str
    command: str
    promised: tuple[str, ...]
    decisions: tuple[str, ...]

    @property
    def traces(self) -> list[str]:
        return [word for word in shlex.split(self.command) if word.endswith(".kvtrace")]

    @property
    def needs_torch(self) -> bool:
        told = self.command.startswith("kvrewind record") and "--model symbolic" not in self.command
        scripts = ("stream.py", "async_client.py", "architectures.py", "--model canary")
        return told or any(script in self.command for script in scripts)


@cache
def page() -> str:
    return (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")


@cache
def sections() -> Mapping[str, Section]:
    found = re.split(r"^##+ (.+)\n", page(), flags=re.MULTILINE)[1:]
    titles, texts = found[::2], found[1::2]
    with_command = [(t, x) for t, x in zip(titles, texts, strict=True) if "```console" in x]
    return {title: section(title, text) for title, text in with_command}


def section(title: str, text: str) -> Section:
    (block,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    assert lines[0].startswith("$ ")
    assert not any(line.startswith("$ ") for line in lines[1:]), "one command shows it"
    decisions = re.search(r"^Decisions: (.*)\.$", text, re.MULTILINE)
    return Section(
        title=title,
        command=lines[0][2:],
        promised=tuple(line for line in lines[1:] if line != "..."),
        decisions=tuple(ticked(decisions[1])) if decisions else (),
    )


@cache
def table() -> Mapping[str, tuple[list[str], list[str]]]:
    """Mechanism -> (its switches, its events)."""
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| (.+?) \| (.+?) \|$", page(), re.MULTILINE)
    for title, anchor, *_ in rows:
        assert anchor == "#" + title.lower().replace(" ", "-")
    return {title: (ticked(switch), ticked(events)) for title, _, switch, events in rows}


def ticked(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def execute(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell would, in this process: loading takes longer than all else."""
    for part in command.split(" && "):
        program, *arguments = shlex.split(part)
        if program == "kvrewind":
            assert run(arguments) == 0
        else:
            assert program == "python"
            monkeypatch.setattr("sys.argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")


def comparable(line: str, command: str) -> str:
    words = " ".join(line.split())
    return re.sub(r"[-+.\d]+", "#", words) if command.startswith(MEASURED) else words


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples, where what a command writes does no harm."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize("title", sections())
def test_a_mechanism_happens_by_its_command_and_is_recorded_clean(
    title: str,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = sections()[title]
    if told.needs_torch and not (find_spec("torch") and find_spec("transformers")):
        pytest.skip('needs the extra: pip install "kvrewind[engine]"')
    execute(told.command, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    output = {comparable(line, told.command) for line in printed}
    missing = [line for line in told.promised if comparable(line, told.command) not in output]
    assert told.promised
    assert not missing
    _, events = table().get(title, ([], []))
    if not told.traces:
        assert not events
        return
    with TraceReader(checkout / told.traces[0]) as reader:
        envelopes = list(reader.envelopes())
    assert {envelope.kind for envelope in envelopes} >= set(events)
    decided = {e.event.about for e in envelopes if isinstance(e.event, DecisionMade)}
    assert decided | set(BUILDERS) >= set(told.decisions)
    report = check(envelopes)
    assert report.verdict == "clean"
    assert not report.findings


def test_the_page_goes_from_data_structure_to_one_section_a_mechanism() -> None:
    headings = re.findall(r"^## (.+)$", page(), re.MULTILINE)
    assert tuple(headings) == PARTS
    assert [EXAMPLE, *table()] == list(sections())


def test_every_switch_and_every_field_of_a_prompts_file_has_its_place() -> None:
    named = set(ticked(page()))
    assert {f.name for f in fields(EngineConfig)} <= named
    assert {f.name for f in fields(PromptSpec)} <= named


def test_the_events_that_the_table_names_exist() -> None:
    for _, events in table().values():
        assert set(events) <= set(KINDS)


def test_a_command_works_in_a_shell_as_it_stands(checkout: Path) -> None:
    kvrewind = Path(shutil.which("kvrewind") or ROOT / ".venv" / "bin" / "kvrewind")
    if not kvrewind.exists():
        pytest.skip("kvrewind isn't installed as a command")
    told = sections()["Chunked prefill"]
    (block,) = re.findall(
        r"```console\n\$ (kvrewind[^$]*?chunks\.kvtrace.*?)\n\d", page(), re.DOTALL
    )
    done = subprocess.run(
        ["bash", "-c", block.replace("kvrewind", str(kvrewind), 1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output = {" ".join(line.split()) for line in done.stdout.splitlines()}
    assert {" ".join(line.split()) for line in told.promised} <= output
