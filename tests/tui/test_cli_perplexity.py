"""`kvrewind perplexity` on the canary: a table, a plot, JSON, and what it refuses."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from kvrewind.tui.cli import run
from kvrewind.tui.commands import perplexity as command

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch isn't installed")

SMALL = ("perplexity", "--model", "canary", "--last", "16")


def measured(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    """Standard output and standard error of a run that works."""
    capsys.readouterr()
    assert run([*SMALL, *map(str, arguments)]) == 0
    told = capsys.readouterr()
    return told.out, told.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run([*SMALL, *map(str, arguments)]) == 2
    told = capsys.readouterr()
    assert (told.out, "Traceback" in told.err) == ("", False)
    return told.err


def test_a_table_has_every_setting_at_every_length_and_says_what_it_is_of(capsys) -> None:
    pytest.importorskip("plotext")
    out, err = measured(
        capsys, "--lengths", "64,32", "--kv-dtype", "int8", "--kv-dtype", "int4,auto"
    )
    rows = [line.split() for line in out.splitlines()[1:7]]
    assert [row[:2] for row in rows[::3]] == [["32", "auto"], ["64", "auto"]]
    assert [row[0] for row in rows] == ["32", "int8", "int4,auto", "64", "int8", "int4,auto"]
    assert all("±" in row for row in rows if row[0].startswith("int"))
    assert "perplexity that the cache adds, canary" in out
    for part in ("last 16 tokens", "2 windows of pydoc_data.topics", "torch 2", "python 3"):
        assert part in err


def test_json_has_the_numbers_and_all_that_it_takes_to_get_them_again(capsys, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the passphrase is bemovi . " * 40, encoding="utf-8")
    options = ("--lengths", "32", "--kv-dtype", "int4", "--text", text, "--format", "json")
    told = json.loads(measured(capsys, *options)[0])
    own, less = told["results"]
    assert (own["kv_dtype"], own["length"], own["difference"]) == ("auto", 32, None)
    assert less["kv_dtype"] == "int4"
    assert less["difference"] == pytest.approx(less["perplexity"] - own["perplexity"])
    assert less["difference"] != 0 < less["uncertainty"]
    assert (told["model"], told["dtype"], told["windows"], told["last"]) == (
        "canary", "float32", 2, 16,
    )  # fmt: skip
    assert told["text"]["name"] == str(text)
    assert {"python", "torch", "transformers"} <= set(told["versions"])
    assert json.loads(measured(capsys, *options)[0]) == told


def test_the_plot_goes_into_a_file_and_not_over_one(capsys, tmp_path: Path) -> None:
    pytest.importorskip("plotext")
    svg = tmp_path / "a.svg"
    options = ("--lengths", "32", "--kv-dtype", "int8", "--plot", svg)
    measured(capsys, *options)
    drawn = svg.read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<svg")
    assert "int8" in drawn
    assert "exists already" in refused(capsys, *options)
    measured(capsys, *options, "--force")


def test_without_the_library_the_table_stands_alone_and_says_how_to_get_the_plot(
    capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "can_plot", lambda: False)
    out, err = measured(capsys, "--lengths", "32", "--kv-dtype", "int8")
    assert "int8" in out
    assert 'pip install "kvrewind[plot]"' in err
    options = ("--lengths", "32", "--plot", tmp_path / "a.svg")
    assert 'pip install "kvrewind[plot]"' in refused(capsys, *options)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--lengths 32,many", "separated by commas"),
        ("--lengths 4096", "canary has 2048 positions"),
        ("--lengths 32 --windows 99999", "give a longer --text"),
        ("--lengths 32 --kv-dtype int3", "kv_dtype must be auto, float16, bfloat16, int8"),
        ("--lengths 32 --kv-dtype int8,int8,int8", "kv_dtype lists 3 layers and the model has 2"),
        ("--lengths 32 --text nowhere.txt", "--text nowhere.txt: No such file"),
        ("--lengths 32 --plot a.png", "SVG"),
        ("--lengths 0", "can't have its last 16 predicted"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: str, told: str, capsys) -> None:
    assert told in refused(capsys, *arguments.split())


def test_the_simulator_has_no_perplexity(capsys) -> None:
    assert run(["perplexity", "--model", "symbolic"]) == 2
    assert "symbolic has no weights" in capsys.readouterr().err


def test_help_shows_an_example(capsys) -> None:
    assert run(["perplexity", "--help"]) == 0
    assert "kvrewind perplexity --kv-dtype int8" in capsys.readouterr().out
