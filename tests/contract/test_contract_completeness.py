"""`incomplete`: what a trace doesn't tell, named with what to record; and the other verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hand import Row, Trace, clean, decode, finding, found
from kvrewind.tui.cli import run

P, Q, R = (11, 12, 13, 14), (21, 22, 23, 24), (31, 32, 33, 34)


def one(**step: Any) -> Trace:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15}, **step)
    return t


def missing(trace: Trace) -> str:
    """The sentences of an incomplete trace in which nothing is found."""
    report = trace.judged()
    assert report["findings"] == [], report["findings"]
    assert report["verdict"] == "incomplete"
    assert report["missing"]
    return " ".join(report["missing"])


def test_no_end_of_the_run() -> None:
    assert "RunEnded" in missing(one())


def test_no_start_of_the_run() -> None:
    t = Trace(started=False)
    t.add("a", P)
    t.end()
    assert "RunStarted" in missing(t)


def test_an_empty_trace() -> None:
    t = Trace(started=False)
    assert "RunEnded" in missing(t)


def test_a_step_with_rows_and_no_inputs() -> None:
    t = one(without=["InputsBuilt", "MaskBuilt"])
    t.end()
    assert "InputsBuilt" in missing(t)


def test_an_engine_that_never_logs_what_the_device_is_given() -> None:
    t = one(without=["InputsBuilt", "MaskBuilt", "StepDispatched"])
    t.alloc(2, "a", 1, step=2)
    t.step(2, decode("a", 15, (1, 2), 4), without=["InputsBuilt", "MaskBuilt", "StepDispatched"])
    t.end()
    assert "InputsBuilt" in missing(t)


def test_writes_without_tokens() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]))
    del next(x for x in t.lines if x["kind"] == "SlotsWritten")["tokens"]
    t.end()
    assert "tokens" in missing(t)


@pytest.mark.parametrize(
    "kind", ["SlotsWritten", "StepDispatched", "StepScheduled", "StepCompleted"]
)
def test_an_engine_that_does_not_log_an_event(kind: str) -> None:
    t = one(without=[kind])
    t.end()
    assert kind in missing(t)


def test_a_dropped_span() -> None:
    t = one()
    t.drop(5)
    t.event("RunEnded", reason="done")
    text = missing(t)
    assert "dropped" in text and "buffer full" in text


def test_after_a_dropped_span_what_was_before_is_unknown_and_nothing_is_found() -> None:
    t = one()
    t.register(1, "k1", "a", P)
    t.drop(5)
    t.number = 2
    t.step(2, decode("a", 15, (1, 2), 4), sampled={"a": 16})
    t.finish("a")
    t.release(1, "a", 0, 0), t.free(1), t.release(2, "a", 1, 0), t.free(2)
    t.add("b", (*P, 61), step=3)
    t.lookup("b", ["k1"], [1])
    t.share(1, "b", 0, 1, "k1"), t.alloc(3, "b", 1)
    t.step(3, Row("b", (61,), (1, 3), 4), sampled={"b": 16})
    t.end()
    assert "dropped" in missing(t)


def test_a_fault_after_a_dropped_span_is_still_found() -> None:
    t = one()
    t.drop(5)
    t.step(2, t.admit(2, "c", P, [4]), sampled={"c": 15})
    t.finish("c")
    t.release(4, "c", 0, 0), t.free(4)
    t.release(4, "c", 0, -1)
    t.end()
    report = t.judged()
    assert report["verdict"] == "violated"
    assert [f["check"] for f in report["findings"]] == ["ref-count"]
    assert report["missing"]


def test_a_gap_in_the_numbers() -> None:
    t = one()
    t.dropped += 3
    t.end()
    assert missing(t)


def test_missing_is_filled_beside_findings() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.leave("a", [1])
    second = t.release(1, "a", 0, -1)
    report = t.judged()
    assert report["verdict"] == "violated"
    assert report["findings"][0]["culprit_seq"] == second
    assert "RunEnded" in " ".join(report["missing"])


def test_a_run_that_ends_with_nothing_done_is_clean() -> None:
    t = Trace()
    t.end()
    clean(t)


def test_nothing_is_missing_in_a_step_without_sampled_tokens() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]))
    t.end()
    clean(t)


FIELDS = [
    "check", "class", "root", "position", "seq", "culprit_seq", "decision", "block", "slot", "row",
    "query", "key", "expected", "actual", "victim", "source", "also_affected", "explanation",
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "status", "verdict"),
    [
        ("none", 0, "clean"),
        ("end", 4, "incomplete"),
        ("count", 1, "violated"),
        ("leak", 1, "contaminated"),
    ],
)
def test_imported_lines_are_judged_on_the_command_line(
    fault: str, status: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.register(1, "k1", "a", P)
    if fault == "leak":
        t.add("b", (*R, 61), step=2)
        t.share(1, "b", 0, 2, "k1"), t.alloc(2, "b", 1)
        t.step(2, Row("b", (61,), (1, 2), 4), sampled={"b": 16})
    if fault == "count":
        t.finish("a")
    if fault != "end":
        t.end()
    lines, trace = tmp_path / "t.jsonl", tmp_path / "t.kvtrace"
    lines.write_text(t.text(), encoding="utf-8")
    assert run(["import", str(lines), "--out", str(trace)]) == 0
    capsys.readouterr()
    assert run(["check", str(trace), "--format", "json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == json.loads(json.dumps(t.judged()["findings"]))
    assert list(report) == ["verdict", "findings", "missing"]
    assert report["verdict"] == verdict
    for found_one in report["findings"]:
        assert list(found_one) == FIELDS


def test_findings_are_sorted_by_culprit_and_roots_come_first() -> None:
    t = Trace()
    rows = [
        t.admit(1, n, x, [i + 1]) for i, (n, x) in enumerate(zip("abc", (P, Q, R), strict=True))
    ]
    t.step(1, *rows, sampled={"a": 15, "b": 25, "c": 35})
    t.register(1, "k1", "a", P)
    t.leave("b", [2])
    double = t.release(2, "b", 0, -1)
    t.add("d", (*R, 61), step=2)
    shared = t.share(1, "d", 0, 2, "k1")
    t.alloc(5, "d", 1)
    t.step(2, Row("d", (61,), (1, 5), 4), sampled={"d": 16})
    kept = t.finish("c")
    t.end()
    found(
        t, "contaminated",
        finding("ref-count", "F06", double, root=True),
        finding("identity", "F01", shared, root=True),
        finding("foreign-read", "F01", shared, root=False),
        finding("ref-count", "F06", kept, root=True),
    )  # fmt: skip


def test_a_sampled_token_that_no_event_tells() -> None:
    t = Trace()
    t.step(1, t.admit(1, "a", P, [1]), sampled={"a": 15})
    t.alloc(2, "a", 1, step=2)
    t.step(2, decode("a", 15, (1, 2), 4))
    t.step(3, decode("a", 16, (1, 2), 5), sampled={"a": 17})
    t.end()
    assert "token 5 of a" in missing(t)


def test_a_step_that_raised_wrote_nothing_unless_one_of_its_requests_lives_on() -> None:
    for failed in (("a", "b"), ("a",)):
        t = Trace()
        rows = t.admit(1, "a", (11, 12), [1]), t.admit(1, "b", (21, 22), [2])
        t.step(1, *rows, without=["SlotsWritten"])
        for name in failed:
            t.finish(name, "error")
        t.end()
        missing = t.judged()["missing"]
        assert bool(missing) == (len(failed) < 2), missing
        assert all("SlotsWritten" in line for line in missing)
