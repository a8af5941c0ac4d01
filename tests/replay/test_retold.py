"""Checks, blame, re-execution and bisection say of a redacted run what they say of a clear one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import FAULTS, policy_of, with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.events import Envelope, PiecesDefined, RunStarted, SpanDropped, TokensSampled
from kvrewind.recorder.keyed_hash import RedactionKey
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.redaction import LABEL, RedactingSink, Redactor, is_redacted
from kvrewind.replay.bisect import bisect
from kvrewind.replay.check import check
from kvrewind.replay.recording import NotReexecutable, Recording
from kvrewind.replay.reexecute import Reexecutor, first_divergence
from kvrewind.replay.report import render
from kvrewind.replay.retold import model_of
from mixed import mixed

FAULT_NAMES = [fault.name for fault in FAULTS]
MODEL = SymbolicModel()


@cache
def recorded(*faults: str, requests: int = 8, redacts: bool = False, **switches: Any):
    workload, sink = default_workload(), MemorySink()
    config = EngineConfig(**(dict(workload.switches) | {"faults": faults} | switches))
    config = with_implied(config)
    specs = workload.specs[:requests]
    prompts = [spec.tokenized(MODEL.encode, 16) for spec in specs]
    front = RedactingSink(sink, Redactor.keyed(RedactionKey.random())) if redacts else sink
    make_engine(MODEL, config, prompts, front, policy=policy_of(config)).run(400)
    return sink.envelopes


def redacted(envelopes: Sequence[Envelope], **how: Any) -> list[Envelope]:
    redactor = Redactor.keyed(RedactionKey.random(), **how)
    return [e._replace(event=redactor.redact(e.event)) for e in envelopes]


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_what_is_found_is_found_under_redaction_too(fault: str) -> None:
    clear = check(recorded(fault)).to_json()
    hidden = check(redacted(recorded(fault))).to_json()
    assert clear["verdict"] == "contaminated"
    for finding in (*clear["findings"], *hidden["findings"]):
        for told in ("expected", "actual", "explanation"):  # may name tokens
            del finding[told]
    assert hidden == clear


def test_a_report_shows_the_beginning_of_a_hash() -> None:
    hidden = redacted(recorded("key-no-parent"))
    text = render(check(hidden), hidden).plain
    assert re.search(r"tokens #[0-9a-f]{8}, #[0-9a-f]{8}", text)


def test_a_run_recorded_under_redaction_has_the_positions_of_the_clear_one() -> None:
    clear, hidden = recorded("key-no-parent"), recorded("key-no-parent", redacts=True)
    assert [e.position for e in hidden] == [e.position for e in clear]
    assert [f.position for f in check(hidden).findings] == [
        f.position for f in check(clear).findings
    ]


def test_a_clean_run_is_clean_under_redaction() -> None:
    assert check(redacted(recorded())).verdict == "clean"


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_a_redacted_run_runs_again_event_for_event(fault: str) -> None:
    hidden = redacted(recorded(fault))
    again = Reexecutor(Recording.of(hidden)).run()
    assert again.finished
    assert first_divergence(hidden, again.envelopes) is None
    assert check(again.envelopes).to_json() == check(hidden).to_json()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_switches_a_redacted_run_runs_again(seed: int) -> None:
    clear = mixed(seed)
    hidden = redacted(clear, names=("clear", "keyed")[seed % 2])
    assert check(hidden).verdict == check(clear).verdict
    recording = Recording.of(hidden)
    if recording.config.granularity == "paragraph":
        return
    again = Reexecutor(recording).run(force_tokens=seed % 3 == 0)
    assert first_divergence(hidden, again.envelopes) is None


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        ("key-no-parent", 6),
        ("free-while-shared", 3),
        ("table-keeps-freed", 7),
        ("mask-batch-index", 2),
    ],
)
def test_bisect_names_the_same_decision_after_the_same_trials(fault: str, requests: int) -> None:
    clear = recorded(fault, requests=requests)
    hidden = redacted(clear)
    found = bisect(hidden, Reexecutor(Recording.of(hidden)))
    assert found.culprits
    assert found.to_json() == bisect(clear, Reexecutor(Recording.of(clear), MODEL)).to_json()


def test_names_may_be_keyed_as_well() -> None:
    hidden = redacted(recorded("key-no-parent"), names="keyed")
    again = Reexecutor(Recording.of(hidden)).run()
    assert first_divergence(hidden, again.envelopes) is None
    clear, found = check(recorded("key-no-parent")).findings, check(hidden).findings
    assert [(f.check, f.position, f.culprit_seq) for f in found] == [
        (f.check, f.position, f.culprit_seq) for f in clear
    ]
    assert found[0].victim != clear[0].victim


def test_no_model_is_needed_whatever_was_recorded() -> None:
    clear = recorded("key-no-parent")
    header = clear[0].event
    assert isinstance(header, RunStarted)
    other = replace(header, model="/nobody/has/it", model_digest="1234")
    hidden = redacted([clear[0]._replace(event=other), *clear[1:]])
    executor = Reexecutor(Recording.of(hidden))
    assert first_divergence(hidden, executor.run().envelopes) is None
    assert executor.other_versions() == []


def test_a_real_model_is_not_given_hashes() -> None:
    recording = Recording.of(redacted(recorded()))
    with pytest.raises(NotReexecutable, match="keyed hashes"):
        model_of(recording, "canary")
    with pytest.raises(NotReexecutable, match="recorded without --redact"):
        model_of(recording).encode("hello")
    assert model_of(recording).decode([5, 6]) == "(2 redacted tokens)"


def test_paragraphs_are_not_known_under_redaction() -> None:
    recording = Recording.of(redacted(recorded(granularity="paragraph")))
    with pytest.raises(NotReexecutable, match="paragraph"):
        model_of(recording)


def test_what_was_said_in_a_gap_is_not_known_under_redaction() -> None:
    hidden = redacted(recorded())
    at = len(hidden) // 2
    gap = SpanDropped(first_seq=at, count=1, why="slow")
    recording = Recording.of([*hidden[:at], hidden[at]._replace(event=gap), *hidden[at + 1 :]])
    with pytest.raises(NotReexecutable, match="events are missing"):
        model_of(recording)


def test_a_run_under_other_switches_is_as_redacted_as_the_recorded_one() -> None:
    hidden = redacted(recorded("key-no-parent"))
    rerun = Reexecutor(Recording.of(hidden)).run({"prefix_cache": False})
    header = rerun.envelopes[0].event
    assert isinstance(header, RunStarted) and isinstance(hidden[0].event, RunStarted)
    assert is_redacted(header)
    assert header.config[LABEL] == hidden[0].event.config[LABEL]
    assert check(rerun.envelopes).verdict == "clean"
    pieces = [e.event for e in rerun.envelopes if isinstance(e.event, PiecesDefined)]
    assert pieces and all(event == PiecesDefined(tokens=(), pieces=()) for event in pieces)


def test_another_token_under_redaction_is_a_divergence() -> None:
    hidden = redacted(recorded())
    again = Reexecutor(Recording.of(hidden)).run().envelopes
    at = next(i for i, e in enumerate(again) if isinstance(e.event, TokensSampled))
    changed = replace(again[at].event, tokens=(1,))
    found = first_divergence(hidden, [*again[:at], again[at]._replace(event=changed)])
    assert found is not None
    assert found.recorded == hidden[at]
