"""`kvrewind export`, format by format: where it writes, what it warns of, what it never harms."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.errors import BadInput
from kvrewind.recorder.reader import TraceReader
from kvrewind.tui.cli import run
from kvrewind.tui.commands import export

TEXT_FORMATS = ("jsonl", "perfetto", "html")
FORMATS = (*TEXT_FORMATS, "parquet")
BEGINS = {"jsonl": b'{"kind":', "perfetto": b'{"displayTimeUnit"', "html": b"<!DOCTYPE html>",
          "parquet": b"PAR1"}  # fmt: skip


@pytest.fixture
def leaking(trace_of: Callable[..., Path]) -> Path:
    return trace_of("leak")


def needs(format: str) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason='needs the extra: pip install "kvrewind[parquet]"')


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_goes_into_a_file(format: str, leaking: Path, tmp_path: Path, capsys) -> None:
    needs(format)
    out = tmp_path / "out"
    assert run(["export", str(leaking), "--format", format, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(BEGINS[format])
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("format", TEXT_FORMATS)
def test_standard_output_has_what_a_file_has(
    format: str, leaking: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    assert run(["export", str(leaking), "--format", format, "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["export", str(leaking), "--format", format, "--out", "-"]) == 0
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")


class Stream(io.TextIOWrapper):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO())
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def test_parquet_goes_into_a_pipe_and_not_onto_a_terminal(
    leaking: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    needs("parquet")
    for is_terminal in (False, True):
        stream = Stream(is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        status = run(["export", str(leaking), "--format", "parquet"])
        written = stream.buffer.getvalue()  # type: ignore[attr-defined]
        assert (status, written[:4]) == ((2, b"") if is_terminal else (0, b"PAR1"))
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_written_over_without_force(
    format: str, leaking: Path, tmp_path: Path, capsys
) -> None:
    needs(format)
    out = tmp_path / "out"
    out.write_text("precious")
    command = ["export", str(leaking), "--format", format, "--out", str(out)]
    assert run(command) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert run([*command, "--force"]) == 0
    assert out.read_bytes().startswith(BEGINS[format])


def test_a_trace_is_not_replaced_by_its_own_export(leaking: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "a.kvtrace"
    trace.write_bytes(leaking.read_bytes())
    assert run(["export", str(trace), "--out", str(trace), "--force"]) == 2
    assert "is what is read" in capsys.readouterr().err
    assert trace.read_bytes() == leaking.read_bytes()


def test_what_fails_half_way_leaves_what_was_there(
    leaking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    out = tmp_path / "out"
    out.write_text("precious")

    def break_off(reader: TraceReader, stream: io.TextIOBase) -> None:
        stream.write("half")
        raise BadInput("the rest can't be read")

    monkeypatch.setitem(export._WRITERS, "html", (break_off, True))
    assert run(["export", str(leaking), "--format", "html", "--out", str(out), "--force"]) == 2
    assert out.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_place_that_cannot_be_written_to_is_named(leaking: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "nowhere" / "out.html"
    assert run(["export", str(leaking), "--format", "html", "--out", str(out)]) == 2
    assert f"{out} can't be created" in capsys.readouterr().err


def test_a_device_is_written_to_and_stays_one(leaking: Path) -> None:
    null = Path("/dev/null")
    if not null.is_char_device():
        pytest.skip("there is no /dev/null here")
    assert run(["export", str(leaking), "--out", str(null), "--force"]) == 0
    assert null.is_char_device()


def test_without_pyarrow_one_sentence_says_what_to_install(
    leaking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "out.parquet"
    assert run(["export", str(leaking), "--format", "parquet", "--out", str(out)]) == 2
    assert 'pip install "kvrewind[parquet]"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_in_clear_warns_and_a_redacted_one_does_not(
    format: str, leaking: Path, tmp_path: Path, capsys
) -> None:
    needs(format)
    hidden = tmp_path / "hidden.kvtrace"
    assert run(["redact", str(leaking), "--out", str(hidden)]) == 0
    for trace, warns in ((leaking, True), (hidden, False)):
        capsys.readouterr()
        out = tmp_path / f"{trace.stem}.{format}"
        assert run(["export", str(trace), "--format", format, "--out", str(out)]) == 0
        told = capsys.readouterr().err
        assert ("in clear" in told) is warns
        assert len(told.splitlines()) == int(warns)


def test_damage_is_said_and_shows_in_the_picture(leaking: Path, tmp_path: Path, capsys) -> None:
    lines = tmp_path / "a.jsonl"
    run(["export", str(leaking), "--out", str(lines)])
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:-1]))
    cut = tmp_path / "cut.kvtrace"
    run(["import", str(lines), "--out", str(cut)])
    capsys.readouterr()
    assert run(["export", str(cut), "--format", "perfetto", "--out", "-"]) == 0
    told = capsys.readouterr()
    assert "no end record" in told.err
    assert "no end record" in json.loads(told.out)["otherData"]["missing"]


def test_a_name_with_spaces_is_quoted_in_the_page(leaking: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "my <run>.kvtrace"
    trace.write_bytes(leaking.read_bytes())
    assert run(["export", str(trace), "--format", "html"]) == 0
    told = capsys.readouterr().out
    assert "kvrewind open 'my &lt;run&gt;.kvtrace' 2:41" in told


@pytest.mark.parametrize("name", [*(fault.name for fault in FAULTS), "clean"])
def test_a_recorded_run_is_the_same_when_it_is_imported_again(
    name: str, trace_of: Callable[..., Path], tmp_path: Path, capsys
) -> None:
    lines, again = tmp_path / "a.jsonl", tmp_path / "b.kvtrace"
    assert run(["export", str(trace_of(name)), "--out", str(lines)]) == 0
    assert run(["import", str(lines), "--out", str(again)]) == 0
    with TraceReader(trace_of(name)) as first, TraceReader(again) as second:
        assert list(first.envelopes()) == list(second.envelopes())
        assert first.step_digests() == second.step_digests()
        assert first.end == second.end is not None
        assert second.problems == []


STEP = '{"kind":"StepDispatched","step":1,"seq":%d}\n'


@pytest.mark.parametrize(
    ("seqs", "says"),
    [((0, 5, 4), "line 3: seq 4 is not above 5"), ((0, 7, 7), "line 3: seq 7 is not above 7")],
    ids=["out of order", "twice"],
)
def test_an_import_refuses_seqs_that_do_not_grow_and_names_the_line(
    seqs: tuple[int, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    lines, out = tmp_path / "a.jsonl", tmp_path / "a.kvtrace"
    text = "".join(STEP % seq for seq in seqs)
    lines.write_text(text)
    assert run(["import", str(lines), "--out", str(out)]) == 2
    assert f"{lines}, {says}" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(["import", "-", "--out", str(out)]) == 2
    assert f"standard input, {says}" in capsys.readouterr().err
    assert not out.exists()


def test_an_import_without_an_end_says_so_and_is_incomplete(tmp_path: Path, capsys) -> None:
    lines, out = tmp_path / "a.jsonl", tmp_path / "a.kvtrace"
    lines.write_text(STEP % 3)
    assert run(["import", str(lines), "--out", str(out)]) == 0
    assert "no RunEnded" in capsys.readouterr().err
    assert run(["check", str(out)]) == 4
    with TraceReader(out) as reader:
        assert reader.end is None
        assert [envelope.seq for envelope in reader.envelopes()] == [3]
