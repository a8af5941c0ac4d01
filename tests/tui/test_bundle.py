"""A bundle can be handed over: it is redacted, says what it is, and opens elsewhere."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.redaction import is_redacted
from kvrewind.tui.cli import run

FILES = ["README.txt", "check.json", "info.json", "report.html", "trace.kvtrace", "versions.json"]
WORDS = ("passphrase", "secret", "remember")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def leak(trace_of: Callable[..., Path]) -> Path:
    return trace_of("leak")


def unpacked(bundle: str) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall("unpacked")
        return {name: archive.read(name) for name in archive.namelist()}


def told(files: dict[str, bytes]) -> set[str]:
    content = b"".join(files.values())
    return {word for word in WORDS if word.encode() in content}


def test_it_is_redacted_on_the_way(leak: Path) -> None:
    assert b"passphrase" in leak.read_bytes()
    assert run(["bundle", str(leak), "--out", "leak.zip"]) == 0
    files = unpacked("leak.zip")
    assert list(files) == FILES
    assert not told({name: files[name] for name in files if name != "README.txt"})
    with TraceReader("unpacked/trace.kvtrace") as reader:
        assert is_redacted(reader.run)
        assert reader.complete


def test_it_says_what_check_says(leak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bundle", str(leak), "--out", "leak.zip"]) == 0
    capsys.readouterr()
    files = unpacked("leak.zip")
    assert run(["check", "unpacked/trace.kvtrace", "--format", "json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert run(["check", str(leak), "--format", "json"]) == 1
    clear = json.loads(capsys.readouterr().out)
    assert json.loads(files["check.json"]) == again
    for report in (again, clear):
        report["findings"] = [(f["position"], f["culprit_seq"]) for f in report["findings"]]
    assert again == clear
    assert again["findings"]


def test_it_names_no_place_of_the_machine_it_was_made_on(leak: Path) -> None:
    assert run(["bundle", str(leak), "--out", "leak.zip"]) == 0
    files = unpacked("leak.zip")
    for place in (leak.parent, Path.cwd(), Path.home()):
        assert not any(f"{place}/".encode() in content for content in files.values())
    assert json.loads(files["info.json"])["trace"] == "trace.kvtrace"
    assert json.loads(files["versions.json"])["kvrewind"]


def test_its_commands_are_the_ones_that_it_tells_of(leak: Path) -> None:
    assert run(["bundle", str(leak), "--out", "leak.zip"]) == 0
    readme = unpacked("leak.zip")["README.txt"].decode()
    assert all(f"  {name}" in readme for name in FILES)
    commands = [line.split()[1] for line in readme.splitlines() if line.startswith("  kvrewind ")]
    assert commands == ["check", "open", "bisect"]
    assert "The recorded file was damaged" not in readme


def test_two_bundles_of_a_redacted_trace_are_the_same_bytes(leak: Path) -> None:
    assert run(["redact", str(leak), "--out", "redacted.kvtrace"]) == 0
    for name in ("a.zip", "b.zip"):
        assert run(["bundle", "redacted.kvtrace", "--out", name]) == 0
    assert Path("a.zip").read_bytes() == Path("b.zip").read_bytes()
    Path("key").write_bytes(bytes(range(32)))
    for name in ("c.zip", "d.zip"):
        assert run(["bundle", str(leak), "--redact-key", "key", "--out", name]) == 0
    assert Path("c.zip").read_bytes() == Path("d.zip").read_bytes()


def test_it_is_opened_without_being_unpacked(
    leak: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bundle", str(leak), "--out", "leak.zip"]) == 0
    files = unpacked("leak.zip")
    capsys.readouterr()
    assert run(["check", "leak.zip", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(files["check.json"])
    assert run(["info", "leak.zip", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("trace") == "leak.zip"
    assert told.items() <= json.loads(files["info.json"]).items()
    assert run(["bundle", "leak.zip", "--out", "again.zip"]) == 0
    assert Path("again.zip").read_bytes() == Path("leak.zip").read_bytes()


def test_a_zip_file_that_is_no_bundle_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile("other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    Path("cut.zip").write_bytes(Path("other.zip").read_bytes()[:-10])
    for name, said in (("other.zip", "without trace.kvtrace"), ("cut.zip", "damaged zip file")):
        assert run(["check", name]) == 2
        told = capsys.readouterr().err
        assert name in told and said in told


def test_in_clear_only_when_asked_and_with_a_warning(
    leak: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bundle", str(leak), "--clear", "--out", "clear.zip"]) == 0
    assert "go out in clear" in capsys.readouterr().err
    files = unpacked("clear.zip")
    assert told(files)
    assert "EVERYTHING" in files["README.txt"].decode()


def test_bad_requests_leave_nothing_behind(leak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("there.zip").write_text("mine")
    for options, said in (
        (["--out", "there.zip"], "exists already"),
        (["--out", "nowhere/leak.zip"], "can't be created"),
        (["--out", "leak.zip", "--clear", "--what", "all"], "--clear redacts nothing"),
        (["--out", "leak.zip", "--redact-key", "absent"], "head -c 32"),
    ):
        assert run(["bundle", str(leak), *options]) == 2
        assert said in capsys.readouterr().err
    assert run(["bundle", "absent.kvtrace", "--out", "leak.zip"]) == 2
    assert [path.name for path in Path.cwd().iterdir()] == ["there.zip"]
    assert Path("there.zip").read_text() == "mine"


def test_a_trace_that_was_cut_short_says_so_in_the_bundle(leak: Path) -> None:
    Path("cut.kvtrace").write_bytes(leak.read_bytes()[:-20_000])
    assert run(["bundle", "cut.kvtrace", "--out", "cut.zip"]) == 0
    files = unpacked("cut.zip")
    assert "The recorded file was damaged: " in files["README.txt"].decode()
    assert json.loads(files["info.json"])["complete"] is False
