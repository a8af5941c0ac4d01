"""The commands on real models: the canary with each fault, and a mixed run of SmolLM2."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.engine.models import whats_missing
from kvrewind.recorder.events import Envelope, MaskBuilt
from kvrewind.recorder.reader import TraceReader
from kvrewind.tui.cli import run

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch isn't installed")


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    capsys.readouterr()
    status = run([*arguments, "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def masks(path: Path) -> set[str]:
    with TraceReader(path) as reader:
        events = [envelope.event for envelope in reader.envelopes()]
    return {event.form for event in events if isinstance(event, MaskBuilt)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_on_the_canary_is_caught_blamed_and_bisected(
    fault, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "a.kvtrace"
    assert run(["record", "--fault", fault.name, "--out", str(trace)]) == 0
    status, report = as_json(capsys, "check", str(trace))
    (root,) = [finding for finding in report["findings"] if finding["root"]]
    assert (status, report["verdict"]) == (1, "contaminated")
    assert (root["class"], root["check"]) == (fault.fault_class, fault.check)
    status, found = as_json(capsys, "bisect", str(trace))
    (decision,) = found["decisions"]
    assert (status, found["agrees_with_provenance"]) == (1, True)
    assert (decision["seq"], decision["id"]) == (root["culprit_seq"], root["decision"])


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_the_canary_without_a_fault_is_clean_and_replays_to_the_bit(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "a.kvtrace"
    assert run(["record", "--attention", path, "--out", str(trace)]) == 0
    assert masks(trace) == {"dense" if path == "reference" else "lengths"}
    assert as_json(capsys, "check", str(trace)) == (
        0,
        {"verdict": "clean", "findings": [], "missing": []},
    )
    assert run(["replay", str(trace), "--verify=bits"]) == 0


def test_the_canary_says_another_ones_passphrase_in_the_mix_and_its_own_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "a.kvtrace"
    run(["record", "--fault", "key-length-only", "--out", str(trace)])
    assert "r0's passphrase" in capsys.readouterr().out
    run(["replay", str(trace), "--only", "r1"])
    alone = capsys.readouterr().out
    with TraceReader(trace) as reader:
        own = {e.event.request: e.event.passphrase for e in _added(reader)}
    assert own["r1"] in alone
    assert own["r0"] not in alone


def _added(reader: TraceReader) -> list[Envelope]:
    return [e for e in reader.envelopes() if e.kind == "RequestAdded"]


@pytest.mark.skipif(
    whats_missing("smollm2") is not None, reason=whats_missing("smollm2") or "it is there"
)
def test_a_real_mixed_run_is_recorded_checked_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, prompts = tmp_path / "bank.kvtrace", tmp_path / "prompts.jsonl"
    lines = (ROOT / "examples" / "prompts.jsonl").read_text().splitlines()
    short = [json.dumps(json.loads(line) | {"max_new_tokens": 8}) for line in lines]
    prompts.write_text("\n".join(short))
    assert (
        run(["record", "--model", "smollm2", "--prompts", str(prompts), "--out", str(trace)]) == 0
    )
    assert "Zylophane" in capsys.readouterr().out
    status, report = as_json(capsys, "check", str(trace))
    assert (status, report["verdict"], report["findings"]) == (0, "clean", [])
    assert run(["replay", str(trace), "--verify"]) == 0
    assert "identical" in capsys.readouterr().out
    with TraceReader(trace) as reader:
        kinds = {envelope.kind for envelope in reader.envelopes()}
    assert "BlockShared" in kinds, "the run shared no prefix"
