"""What a trace says is shown, and does nothing to the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvrewind.tui.cli import run
from kvrewind.tui.harmless import harmless


def test_control_characters_only_take_their_place() -> None:
    assert harmless("a\x1b[2Jb\x07\x9bc") == "a�[2Jb��c"
    assert harmless("a\u202eb\u2028c\u2069d") == "a�b�c�d"
    assert harmless("größer 漢字\n\tx") == "größer 漢字\n\tx"


@pytest.mark.parametrize("command", ["check", "info"])
def test_an_escape_sequence_in_a_trace_stays_text(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, lines, evil = tmp_path / "a.kvtrace", tmp_path / "a.jsonl", tmp_path / "b.kvtrace"
    run(["record", "--model", "symbolic", "--fault", "key-length-only", "--out", str(trace)])
    run(["export", str(trace), "--out", str(lines)])
    name = json.dumps("r1\x1b[2J\x1b]0;owned\x07")
    text = lines.read_text().replace('"r1"', name).replace('"model":"symbolic"', f'"model":{name}')
    lines.write_text(text)
    assert run(["import", str(lines), "--out", str(evil)]) == 0
    capsys.readouterr()
    run([command, str(evil)])
    told = capsys.readouterr()
    assert "r1" in told.out
    assert "\x1b" not in told.out + told.err
    assert "\x07" not in told.out + told.err


def test_a_name_with_a_line_break_adds_no_line_to_what_is_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, lines, evil = tmp_path / "a.kvtrace", tmp_path / "a.jsonl", tmp_path / "b.kvtrace"
    run(["record", "--model", "symbolic", "--first", "2", "--out", str(trace)])
    run(["export", str(trace), "--out", str(lines)])
    name = json.dumps("r1\nstep 9999 all is well")
    lines.write_text(lines.read_text().replace('"r1"', name))
    assert run(["import", str(lines), "--out", str(evil)]) == 0
    for options in ([], ["--events"]):
        capsys.readouterr()
        assert run(["tail", str(trace), *options]) == 0
        honest = capsys.readouterr().out
        assert run(["tail", str(evil), *options]) == 0
        told = capsys.readouterr().out
        assert "r1�step 9999 all is well" in told
        assert told.count("\n") == honest.count("\n")


def test_names_that_look_like_markup_or_emoji_stay_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decision of request a is reuse:a:0:0, which isn't a sign in a red box."""
    prompts, trace = tmp_path / "odd.jsonl", tmp_path / "odd.kvtrace"
    names = ("a", "[red]x[/red]")
    prompts.write_text("".join(json.dumps({"request": n, "prompt": "the"}) + "\n" for n in names))
    command = ["record", "--model", "symbolic", "--prompts", str(prompts), "--out", str(trace)]
    assert run([*command, "--show", "BlockAllocated"]) == 0
    told = capsys.readouterr().out
    for name in names:
        assert f"reuse:{name}:0:0" in told
