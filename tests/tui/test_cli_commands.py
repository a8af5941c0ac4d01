"""The commands as a person types them, on the simulator."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.tui.cli import build_app, run

FAULT_NAMES = [fault.name for fault in FAULTS]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trace a fault, and a clean one for each attention path."""
    folder = tmp_path_factory.mktemp("traces")
    for name in FAULT_NAMES:
        assert record(folder / f"{name}.kvtrace", "--fault", name) == 0
    for path in ("fast", "reference"):
        assert record(folder / f"clean-{path}.kvtrace", "--attention", path) == 0
    return folder


def record(path: Path, *options: str) -> int:
    return run(["record", "--model", "symbolic", "--out", str(path), *options])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    """Exit status, and standard output, which must be one JSON value and nothing else."""
    capsys.readouterr()
    status = run([*arguments, "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_NAMES)
def test_a_planted_fault_is_contaminated_with_its_class_and_check(
    fault, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = as_json(capsys, "check", str(traces / f"{fault.name}.kvtrace"))
    roots = [f for f in report["findings"] if f["root"]]
    assert (status, report["verdict"]) == (1, "contaminated")
    assert {(f["class"], f["check"]) for f in roots} == {(fault.fault_class, fault.check)}
    assert {f["class"] for f in report["findings"]} == {fault.fault_class}
    assert report["missing"] == []


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_the_clean_twin_has_no_finding(
    path: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = as_json(capsys, "check", str(traces / f"clean-{path}.kvtrace"))
    assert (status, report) == (0, {"verdict": "clean", "findings": [], "missing": []})


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_NAMES)
def test_bisect_names_the_decision_that_check_blames(
    fault, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(traces / f"{fault.name}.kvtrace")
    _, report = as_json(capsys, "check", trace)
    status, found = as_json(capsys, "bisect", trace)
    root = next(f for f in report["findings"] if f["root"])
    (decision,) = found["decisions"]
    assert (status, found["verdict"]) == (1, "contaminated")
    assert decision["seq"] == root["culprit_seq"]
    assert decision["id"] == root["decision"]
    assert found["agrees_with_provenance"] is True
    thrown = [t["switch"] for t in found["toggles"]]
    assert thrown[:3] == ["serial", "no-prefix-cache", "no-continuous-batching"]
    assert {"no-packing", "no-block-reuse"} <= set(thrown[3:])


def test_bisect_of_a_clean_trace_has_nothing_to_blame(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = as_json(capsys, "bisect", str(traces / "clean-fast.kvtrace"))
    assert (status, found["verdict"], found["decisions"]) == (0, "clean", [])


@pytest.mark.parametrize("name", [*FAULT_NAMES, "clean-fast", "clean-reference"])
def test_a_replay_is_identical_to_the_bit(
    name: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(traces / f"{name}.kvtrace")
    assert run(["replay", trace]) == 0
    assert run(["replay", trace, "--verify"]) == 0
    assert run(["replay", trace, "--verify=bits", "--force-tokens"]) == 0
    assert capsys.readouterr().out.count("identical") == 3


def test_a_replay_under_other_switches_diverges_and_shows_both_events(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(traces / "clean-fast.kvtrace")
    assert run(["replay", trace, "--verify", "--no-prefix-cache"]) == 3
    told = capsys.readouterr().out
    assert re.search(r"diverged at \d+:\d+", told)
    assert "recorded" in told
    assert "replayed" in told


def test_one_request_alone_says_its_own_passphrase(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(traces / "key-length-only.kvtrace")
    assert run(["replay", trace, "--only", "r2"]) == 0
    told = capsys.readouterr().out
    assert "verdict: clean" in told
    assert "r1" not in told


def test_a_toggle_in_replay_shows_answers_and_verdict(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(traces / "key-length-only.kvtrace"), "--no-prefix-cache"]) == 0
    assert "verdict: clean" in capsys.readouterr().out


def test_export_then_import_gives_the_same_trace(traces: Path, tmp_path: Path) -> None:
    lines, again, twice = tmp_path / "a.jsonl", tmp_path / "b.kvtrace", tmp_path / "c.jsonl"
    assert run(["export", str(traces / "key-no-parent.kvtrace"), "--out", str(lines)]) == 0
    assert run(["import", str(lines), "--out", str(again)]) == 0
    assert run(["export", str(again), "--out", str(twice)]) == 0
    assert lines.read_text() == twice.read_text()
    assert len(lines.read_text().splitlines()) > 500


def test_an_imported_trace_is_judged_as_the_recorded_one(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, lines, again = traces / "key-no-parent.kvtrace", tmp_path / "a.jsonl", tmp_path / "b"
    run(["export", str(trace), "--out", str(lines)])
    run(["import", str(lines), "--format", "jsonl", "--out", str(again)])
    assert as_json(capsys, "check", str(trace)) == as_json(capsys, "check", str(again))


def test_export_to_standard_output_is_json_lines_alone(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["export", str(traces / "clean-fast.kvtrace"), "--format", "jsonl"]) == 0
    told = capsys.readouterr()
    kinds = [json.loads(line)["kind"] for line in told.out.splitlines()]
    assert (kinds[0], kinds[-1]) == ("RunStarted", "RunEnded")
    assert "in clear" in told.err


def test_info_tells_what_a_trace_holds(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, facts = as_json(capsys, "info", str(traces / "clean-fast.kvtrace"))
    assert (facts["complete"], facts["problems"]) == (True, [])
    assert (facts["requests"], facts["finished"], facts["model"]) == (9, 9, "symbolic")
    assert facts["kinds"]["RequestPreempted"] >= 1


def test_info_gives_the_memory_account_as_plain_numbers(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--requests", "3", "--length", "40", "--context", "500")
    _, facts = as_json(capsys, "info", str(traces / "clean-fast.kvtrace"), *options)
    memory = facts["memory"]
    pool = memory["pool"]
    assert (memory["bytes_per_token"], memory["bytes_per_block"]) == (8, 8 * 16)
    assert pool["bytes"] == pool["tokens"] * 8 == pool["blocks"] * 128
    assert memory["need"]["bytes"] == 3 * 40 * 8
    assert (memory["need"]["blocks_per_request"], memory["need"]["blocks"]) == (3, 9)
    assert 0 < memory["held"]["mean_share"] < memory["held"]["peak_share"] <= 1
    assert memory["saved"]["peak_blocks"] > 0
    assert 0 < memory["fragmentation"]["mean_share"] < 0.5
    contiguous = memory["contiguous"]
    assert contiguous["longest"]["mean_times_held"] > 1
    assert contiguous["context"]["peak_tokens"] % 500 == 0
    assert memory["missing"] == []


def test_info_tells_the_memory_account_in_words(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    trace = str(traces / "clean-fast.kvtrace")
    assert run(["info", trace, "--requests", "1000", "--length", "2048"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "8 B: 1 layer x 1 KV head x (1 + 1) numbers, float32" in told
    assert "a request of 2,048 tokens takes 16.0 KiB (128 blocks)" in told
    assert "1,000 requests of 2,048 tokens need 15.6 MiB" in told
    for words in ("held by requests", "saved by sharing", "internal fragmentation", "contiguous"):
        assert words in told


def test_info_says_what_it_cannot_count_of_another_engines_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = {
        "kind": "RunStarted", "step": 0, "engine": "other", "engine_version": "9", "model": "m",
        "dtype": "bf16?", "device": "cuda", "num_blocks": 4, "block_size": 16,
        "groups": [{"layers": [0], "kv_heads": 0, "head_dim": 64}], "sentinel_blocks": [],
        "wall_clock": "2026-01-01T00:00:00", "config": {}, "versions": {},
    }  # fmt: skip
    (tmp_path / "a.jsonl").write_text(json.dumps(header) + "\n")
    assert run(["import", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "a.kvtrace")]) == 0
    capsys.readouterr()
    assert run(["info", str(tmp_path / "a.kvtrace")]) == 0
    told = capsys.readouterr().out
    for words in ("no usable kv_heads", "'bf16?'", "no step was recorded"):
        assert words in told


@pytest.mark.parametrize("option", ["--requests", "--length", "--context"])
def test_info_refuses_less_than_one(
    option: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["info", str(traces / "clean-fast.kvtrace"), option, "0"]) == 2
    assert f"{option} must be at least 1" in capsys.readouterr().err


def test_faults_lists_what_can_be_planted(capsys: pytest.CaptureFixture[str]) -> None:
    run(["faults", "--format", "json"])
    listed = json.loads(capsys.readouterr().out)
    assert [f["name"] for f in listed] == FAULT_NAMES
    assert {"name", "class", "check", "outcome", "needs", "what"} <= set(listed[0])


def test_doctor_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    told = capsys.readouterr().out
    for word in ("torch", "transformers", "gpu", "canary", "smollm2", "symbolic"):
        assert word in told


def test_check_of_one_rule_alone(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(traces / "key-length-only.kvtrace")
    _, report = as_json(capsys, "check", trace, "--only", "identity")
    assert {f["check"] for f in report["findings"]} == {"identity"}
    _, report = as_json(capsys, "check", trace, "--skip", "identity", "--skip", "foreign-read")
    assert {f["check"] for f in report["findings"]} == set()


@pytest.mark.parametrize(
    "command",
    ["record", "check", "replay", "bisect", "open", "import", "export", "info", "faults", "doctor",
     "demo"],
)  # fmt: skip
def test_help_of_each_command_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    _, _, after_usage = capsys.readouterr().out.partition("\n")
    assert f"kvrewind {command}" in after_usage


def test_import_reads_standard_input(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    capsys.readouterr()
    assert run(["export", str(traces / "clean-fast.kvtrace"), "--out", "-"]) == 0
    lines = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert run(["import", "-", "--out", str(tmp_path / "a.kvtrace")]) == 0
    assert run(["export", str(tmp_path / "a.kvtrace")]) == 0
    assert capsys.readouterr().out == lines


@pytest.mark.parametrize("command", ["check", "info --format json", "export", "--help"])
def test_a_reader_that_leaves_early_is_no_finding(command: str, traces: Path) -> None:
    options = [] if command == "--help" else [str(traces / "clean-fast.kvtrace")]
    reading, writing = os.pipe()
    os.close(reading)
    script = "from kvrewind.tui.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *command.split(), *options],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


def test_a_request_that_said_nothing_has_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"request": "gone", "prompt": "bemovi", "arrival_step": 3, "abort_step": 1}\n'
        '{"request": "here", "prompt": "user : hi", "passphrase": "bemovi", "max_new_tokens": 2}\n'
    )
    assert record(tmp_path / "a.kvtrace", "--prompts", str(prompts)) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told if "gone" in line] == [["gone", "6", "tokens"]]


def test_the_next_command_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my run.kvtrace"
    assert record(path) == 0
    assert f"next: kvrewind check '{path}'" in capsys.readouterr().err


def test_a_divergence_names_the_fields_that_differ(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(traces / "clean-fast.kvtrace")
    assert run(["replay", trace, "--verify", "--no-prefix-cache"]) == 3
    told = capsys.readouterr().out.splitlines()
    assert "  config.prefix_cache: recorded true, replayed false" in told
    assert json.loads(told[-1].split(maxsplit=1)[1])["kind"] == "RunStarted"


def test_every_engine_switch_is_an_option_of_record_and_replay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("record", "replay"):
        run([command, "--help"])
        told = capsys.readouterr().out
        for option in ("--block-size", "--num-blocks", "--max-num-seqs", "--no-prefix-cache",
                       "--no-continuous-batching", "--attention", "--device", "--dtype", "--seed",
                       "--fault"):  # fmt: skip
            assert option in told


def test_the_commands_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    for name in build_app():
        if not name.startswith("-"):
            assert name in told


def test_demo_tells_five_acts_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--model", "symbolic"]) == 0
    told = capsys.readouterr().out
    assert [f"Act {n}" in told for n in range(1, 6)] == [True] * 5
    assert "'s passphrase" in told
    assert "culprit: share:r1:" in told
    assert "verdict clean, 0 findings" in told
    assert re.search(r"kvrewind open demo\.kvtrace \d+:\d+", told)


def test_a_planted_fault_that_decided_nothing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("the sea is calm\n")
    options = ("--prompts", str(prompts), "--fault", "table-keeps-freed")
    assert record(tmp_path / "a.kvtrace", *options) == 0
    told = capsys.readouterr().err
    assert "table-keeps-freed changed no decision of this run" in told
    assert "needs a pool that preempts" in told
    record(tmp_path / "b.kvtrace", "--fault", "table-keeps-freed")
    assert "changed no decision" not in capsys.readouterr().err


def test_another_seed_gives_the_scenario_other_passphrases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        capsys.readouterr()
        assert record(tmp_path / f"{name}.kvtrace", "--seed", seed) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]
