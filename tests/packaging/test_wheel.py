"""What gets installed is what stands in the tree, and each floor loads without those above it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "recorder", "replay", "tui")
DATA_SUFFIXES = (".py", ".json", ".safetensors", ".tcss", ".txt", ".md")


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES, "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    for name in tracked:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source],
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        return {n.removeprefix("kvrewind/") for n in wheel.namelist() if n.startswith("kvrewind/")}


def test_wheel_holds_every_file_of_the_tree(wheel_files: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    expected = {n for n in tracked if n.endswith(DATA_SUFFIXES) and (ROOT / n).is_file()}
    assert len(expected) > 40
    assert expected - wheel_files == set()


def test_nothing_but_kvrewind_is_installed(wheel_files: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_files} == set(PACKAGES)


@pytest.mark.parametrize(
    "module",
    [
        "kvrewind.recorder.writer",
        "kvrewind.recorder.reader",
        "kvrewind.recorder.jsonl",
        "kvrewind.replay.check",
        "kvrewind.replay.bisect",
        "kvrewind.tui.cli",
        "kvrewind.engine.llm",
    ],
)
def test_loads_without_torch(module: str) -> None:
    """Opening, checking and exporting a trace must work where torch isn't installed."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'triton'): sys.modules[name] = None\n"
        f"import {module}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_recorder_imports_nothing_else_of_ours() -> None:
    code = (
        "import sys, kvrewind.recorder.writer, kvrewind.recorder.jsonl, kvrewind.recorder.reader\n"
        "print([n for n in sys.modules if n.startswith(('kvrewind.engine', 'kvrewind.replay', "
        "'kvrewind.tui'))])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert printed.stdout.strip() == b"[]"
