"""`kvrewind simulate` answers a question about policies with one command."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.prompts_file import read_prompts
from kvrewind.recorder.errors import BadInput
from kvrewind.tui.cli import run
from kvrewind.tui.commands.simulate import parse_cost
from kvrewind.tui.comparison import Comparison

ROOT = Path(__file__).parents[2]
SMALL = ("--poisson", "rate=40,count=16,prompt=8..40,output=4..8,prefix=32,urgent=0.3")


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run(["simulate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def table(printed: str) -> dict[str, list[str]]:
    """Row title -> cells."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in printed.splitlines() if line.strip())
    return {title: cells for title, *cells in rows}


def values(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    return json.loads(told(capsys, *arguments, "--format", "json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run(["simulate", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return " ".join(captured.err.split())


def test_one_table_has_a_column_for_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    printed = told(
        capsys, *SMALL, "--num-blocks", 24, "--compare", "reuse=first-freed,last-freed,quarantine=2"
    )
    rows = table(printed)
    assert rows["reuse"] == ["first-freed", "last-freed", "quarantine=2"]
    for title in (
        "prefix hit rate", "evicted blocks", "preemptions", "pool in use, mean",
        "pool in use, peak", "steps", "time", "tokens a second", "first token, mean",
        "first token, p95",
    ):  # fmt: skip
        assert len(rows[title]) == 3, title
    assert len(set(rows["prefix hit rate"])) > 1


def test_several_comparisons_make_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    result = values(
        capsys, *SMALL, "--compare", "num-blocks=24,64", "--compare", "chunked-prefill=on,off"
    )
    assert [run["setting"] for run in result["runs"]] == [
        {"num_blocks": blocks, "chunked_prefill": chunked}
        for blocks in (24, 64)
        for chunked in (True, False)
    ]
    small, large = result["runs"][0], result["runs"][2]
    assert small["evictions"] > large["evictions"]
    assert small["hit_rate"] < large["hit_rate"]
    assert small["cached_tokens"] / small["prompt_tokens"] == small["hit_rate"]


def test_the_table_and_the_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--num-blocks", 24, "--compare", "sharing=off,tenant")
    rows = table(told(capsys, *arguments))
    runs = values(capsys, *arguments)["runs"]
    assert rows["preemptions"] == [str(run["preemptions"]) for run in runs]
    assert rows["steps"] == [str(run["steps"]) for run in runs]
    assert rows["prefix hit rate"] == [f"{100 * run['hit_rate']:.1f} %" for run in runs]
    assert rows["first token, mean"] == [
        f"{1000 * run['first_token']['mean_s']:.1f} ms" for run in runs
    ]


def test_priorities_can_be_compared_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Measured by the priorities that the requests ask for, whether they are given or not."""
    result = values(capsys, *SMALL, "--max-num-seqs", 2, "--compare", "priorities=on,off")
    with_them, without = (run["first_token_by_priority"]["-1"] for run in result["runs"])
    assert with_them["mean_s"] < without["mean_s"]
    rows = table(told(capsys, *SMALL, "--max-num-seqs", 2, "--compare", "priorities=on,off"))
    assert len(rows["priority -1, mean"]) == len(rows["priority 0, p95"]) == 2


def test_host_memory_shows_where_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--num-blocks", 24)
    assert "loaded from host" not in told(capsys, *arguments)
    rows = table(told(capsys, *arguments, "--compare", "host-blocks=0,64"))
    assert rows["loaded from host"][0] == rows["stored to host"][0] == "0"
    assert int(rows["stored to host"][1]) > 0


def test_requests_can_come_faster(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = values(capsys, *SMALL, "--compare", "speed=0.1,10")["runs"]
    assert slow["time_s"] > fast["time_s"]
    assert slow["first_token"]["mean_s"] < fast["first_token"]["mean_s"]
    assert slow["steps"] > fast["steps"]


def test_the_cost_of_a_step_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    cheap = values(capsys, *SMALL, "--cost", "weights_s=0.001,token_s=0,host_s=0")
    assert cheap["cost"]["weights_s"] == 0.001
    assert cheap["runs"][0]["time_s"] < values(capsys, *SMALL)["runs"][0]["time_s"]


def test_without_a_workload_it_runs_the_default_one(capsys: pytest.CaptureFixture[str]) -> None:
    result = values(capsys)
    assert (result["workload"], result["runs"][0]["requests"]) == ("default", 9)
    assert result["runs"][0]["preemptions"] > 0
    assert result["runs"][0]["unfinished"] == 0


def test_many_settings_go_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = ",".join(str(n) for n in range(24, 36))
    printed = told(capsys, *SMALL, "--first", 3, "--compare", f"num-blocks={blocks}")
    headers = [line for line in printed.splitlines() if line.startswith("num-blocks")]
    assert len(headers) > 1
    assert " ".join(headers).replace("num-blocks", "").split() == blocks.split(",")
    assert max(map(len, printed.splitlines())) <= 100


def test_windows_have_a_pool_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """What lies behind a window is given up, so that less of both pools is in use."""
    whole, windows = (
        values(capsys, *SMALL, "--num-blocks", 64, "--model", model)["runs"][0]
        for model in ("symbolic", "symbolic-windows")
    )
    assert 0 < windows["pool_mean"] < whole["pool_mean"]
    assert windows["sampled_tokens"] == whole["sampled_tokens"]


def test_no_trace_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told(capsys, *SMALL, "--first", 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--compare", "reus=a,b"), "did you mean reuse"),
        (("--compare", "reuse"), "needs values, as in reuse=A,B"),
        (("--compare", "reuse=last-freed,"), "needs values"),
        (("--compare", "num-blocks=8,many"), "num_blocks can't be 'many'; give whole numbers"),
        (("--compare", "prefix-cache=on,perhaps"), "give on or off"),
        (("--compare", "reuse=a,a"), "names a value twice"),
        (("--compare", "seed=1,2", "--compare", "seed=3"), "names seed twice"),
        (("--compare", "reuse=last-freed,sometimes"), "with reuse=sometimes: reuse must be"),
        (("--compare", "num-blocks=64,1"), "with num_blocks=1: request 'r0' needs"),
        (("--compare", "speed=1,0"), "with speed=0.0: speed must be above 0"),
        (("--scenario", "default", "--poisson", "rate=1"), "give one workload"),
        (("--poisson", "rat=1"), "did you mean 'rate'"),
        (("--cost", "weights=1"), "known are weights_s"),
        (("--cost", "weights_s=fast"), "must be a number of seconds"),
        (("--model", "canary"), "it takes symbolic or symbolic-windows"),
        (("--first", "0"), "--first must be at least 1"),
        (("--max-new-tokens", "0"), "--max-new-tokens must be at least 1"),
        (("--speed", "nan"), "speed must be above 0"),
        (("nowhere.jsonl",), "nowhere.jsonl can't be read"),
    ],
)
def test_what_can_not_be_compared_is_said(
    arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in refused(capsys, *arguments)


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="reusepad-=,onf19.", max_size=20))
def test_any_comparison_is_taken_or_refused(text: str) -> None:
    try:
        assert Comparison.parse(text).values
    except BadInput as error:
        assert "--compare" in str(error)


@settings(max_examples=100)
@given(st.text(alphabet="hostweig_=,.e-019naif", max_size=20))
def test_any_cost_is_taken_or_refused(text: str) -> None:
    try:
        assert parse_cost(text).host_s >= 0
    except BadInput as error:
        assert "_s" in str(error)


def test_the_example_is_what_its_script_makes() -> None:
    script = runpy.run_path(str(ROOT / "examples" / "make_requests.py"))
    lines = (ROOT / "examples" / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == script["requests"]()


def test_the_readme_shows_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    command, shown = re.search(
        r"\$ kvrewind simulate (.*requests\.jsonl.*)\n([^$]*)\n\$", text
    ).groups()
    printed = table(told(capsys, *command.split()))
    rows = {title: cells for title, cells in table(shown).items() if title != "..."}
    assert len(rows) >= 3
    assert {title: printed[title] for title in rows} == rows


def test_the_example_is_a_request_trace_with_turns_tenants_and_priorities() -> None:
    specs = read_prompts(ROOT / "examples" / "requests.jsonl")
    assert len(specs) > 30
    assert {spec.tenant for spec in specs} == {"free", "gold"}
    assert {spec.priority for spec in specs} == {0, -1}
    heads = [(spec.prompt_tokens or ())[:512] for spec in specs]
    assert 1 < len(set(heads)) < len(heads)
