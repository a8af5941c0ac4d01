"""Of a real model's run, too, redaction hides the words and nothing that the checks ask for."""

from __future__ import annotations

from functools import cache

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import FAULTS, policy_of, with_implied
from kvrewind.engine.llm import Model, make_engine, open_model
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.keyed_hash import RedactionKey
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.redaction import Redactor
from kvrewind.replay.bisect import bisect
from kvrewind.replay.check import check
from kvrewind.replay.recording import Recording
from kvrewind.replay.reexecute import Reexecutor, first_divergence

pytest.importorskip("torch")
pytest.importorskip("transformers")


@cache
def canary() -> Model:
    return open_model("canary", EngineConfig())


@cache
def recorded(fault: str) -> list[Envelope]:
    workload, sink = default_workload(), MemorySink()
    config = with_implied(EngineConfig(**(dict(workload.switches) | {"faults": (fault,)})))
    model = canary()
    prompts = [spec.tokenized(model.encode, 10) for spec in workload.specs]
    make_engine(model, config, prompts, sink, policy=policy_of(config)).run(400)
    return sink.envelopes


def redacted(envelopes: list[Envelope]) -> list[Envelope]:
    redactor = Redactor.keyed(RedactionKey.random())
    return [e._replace(event=redactor.redact(e.event)) for e in envelopes]


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_the_findings_are_those_of_the_clear_run_and_it_runs_again(fault: str) -> None:
    clear = recorded(fault)
    hidden = redacted(clear)
    reports = [check(run).to_json() for run in (clear, hidden)]
    assert reports[0]["findings"]
    for report in reports:
        for finding in report["findings"]:
            for told in ("expected", "actual", "explanation"):  # may name tokens
                del finding[told]
    assert reports[0] == reports[1]
    again = Reexecutor(Recording.of(hidden)).run()
    assert first_divergence(hidden, again.envelopes) is None


def test_bisect_asks_no_model() -> None:
    clear = recorded("key-no-parent")
    hidden = redacted(clear)
    found = bisect(hidden, Reexecutor(Recording.of(hidden)))
    blamed = check(clear).findings[0].decision
    assert [str(culprit.id) for culprit in found.culprits] == [blamed]
    assert found.agrees_with_provenance
