"""`record` runs prompts files, request traces and generated traffic, and replays find all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvrewind.recorder.events import Envelope, RequestAdded, TokensSampled
from kvrewind.recorder.reader import TraceReader
from kvrewind.tui.cli import run

TRACE = """\
{"timestamp": 7000, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
{"timestamp": 7300, "input_length": 700, "output_length": 3, "hash_ids": [0, 2], "tenant": "t"}
{"timestamp": 9000, "input_length": 700, "output_length": 3, "hash_ids": [0, 3]}
"""


def record(folder: Path, *arguments: object) -> list[Envelope]:
    out = folder / "a.kvtrace"
    line = ["record", "--model", "symbolic", "--out", out, "--force", *arguments]
    assert run([str(part) for part in line]) == 0
    with TraceReader(out) as reader:
        return list(reader.envelopes())


def added(envelopes: list[Envelope]) -> dict[str, tuple[int, RequestAdded]]:
    return {e.event.request: (e.step, e.event) for e in envelopes if type(e.event) is RequestAdded}


def replays(folder: Path) -> bool:
    return run(["replay", str(folder / "a.kvtrace"), "--verify"]) == 0


def clean(folder: Path) -> bool:
    return run(["check", str(folder / "a.kvtrace")]) == 0


def test_a_trace_tells_every_field_of_a_prompt(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "request": "a", "prompt_tokens": [20, 21, 22], "max_new_tokens": 3, "tenant": "t",
        "session": 3, "external_id": "x", "adapter": "fr", "priority": -2, "n": 2,
        "extra_keys": ["salt", [2, 17]], "temperature": 0.5, "top_k": 40, "top_p": 0.9,
        "pin": True, "retention": 2, "ignore_eos": True,
    }  # fmt: skip
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps(said))
    requests = added(record(tmp_path, "--prompts", prompts))
    assert list(requests) == ["a", "a/1"]
    _, event = requests["a"]
    assert (event.tenant, event.session, event.external_id) == ("t", 3, "x")
    assert (event.adapter, event.priority) == ("fr", -2)
    assert event.extra_keys == [[0, "salt"], [2, 17]]
    sampling = event.sampling or {}
    for name in ("n", "temperature", "top_k", "top_p", "pin", "retention", "ignore_eos"):
        assert sampling[name] == said[name]
    assert replays(tmp_path)
    assert clean(tmp_path)


def test_a_request_trace_is_known_by_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    envelopes = record(tmp_path, "--prompts", path)
    requests = added(envelopes)
    steps = [step for step, _ in requests.values()]
    assert steps[0] == 1
    assert steps == sorted(steps)
    assert requests["r1"][1].tenant == "t"
    sampled = [n for e in envelopes if type(e.event) is TokensSampled for n in e.event.requests]
    assert {name: sampled.count(name) for name in requests} == {"r0": 4, "r1": 3, "r2": 3}
    assert replays(tmp_path)
    assert clean(tmp_path)


def test_requests_arrive_by_the_simulated_clock(tmp_path: Path) -> None:
    """Two seconds after the first one: with nobody at work the steps don't go on."""
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    requests = added(record(tmp_path, "--prompts", path))
    assert requests["r2"][0] == requests["r1"][0] + 3
    again = added(record(tmp_path, "--prompts", path, "--clock", "simulated"))
    assert [step for step, _ in again.values()] == [step for step, _ in requests.values()]


def test_requests_arrive_by_the_wall_clock(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"prompt": "a", "arrival_s": 0.05, "max_new_tokens": 1}\n'
        '{"prompt": "b", "arrival_s": 0.0, "max_new_tokens": 1}'
    )
    envelopes = record(tmp_path, "--prompts", prompts, "--clock", "wall")
    assert list(added(envelopes)) == ["r1", "r0"]
    late = next(e for e in envelopes if type(e.event) is RequestAdded and e.event.request == "r0")
    assert late.t_ns >= 40_000_000
    assert replays(tmp_path)


def test_generated_traffic_is_that_of_its_seed(tmp_path: Path) -> None:
    options = ("--poisson", "rate=50,count=6,prompt=8..40,output=2..4,prefix=32,tenants=2")
    first, again, other = (added(record(tmp_path, *options, "--seed", seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert {event.tenant for _, event in first.values()} == {"t0", "t1"}
    assert replays(tmp_path)
    assert clean(tmp_path)


def test_only_the_first_requests_are_taken_when_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    assert list(added(record(tmp_path, "--prompts", path, "--first", 2))) == ["r0", "r1"]
    assert list(added(record(tmp_path, "--first", 3))) == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--poisson", "count=2", "--scenario", "default"), "give one workload"),
        (("--poisson", "count=none"), "count of --poisson"),
        (("--first", "0"), "--first must be at least 1"),
        (("--clock", "sun"), "clock"),
    ],
)
def test_a_workload_that_is_none_is_refused(
    arguments: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.kvtrace"
    assert run(["record", "--model", "symbolic", "--out", str(out), *arguments]) == 2
    assert why in capsys.readouterr().err
    assert not out.exists()
