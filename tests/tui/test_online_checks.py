"""`record --on-finding`: told while the run goes on, and the run's tokens stay what they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.events import Envelope, RequestAdded, RunEnded, TokensSampled
from kvrewind.recorder.reader import TraceReader
from kvrewind.replay.check import Inspection, check
from kvrewind.tui.cli import run

FAULT_NAMES = [fault.name for fault in FAULTS]
Recorded = tuple[int, list[str], Path]
"""Exit status, lines on standard error, trace."""


@pytest.fixture
def record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Recorded]:
    def recorded(*options: str) -> Recorded:
        trace = tmp_path / f"{len(list(tmp_path.iterdir()))}.kvtrace"
        capsys.readouterr()
        status = run(["record", "--model", "symbolic", "--out", str(trace), *options])
        lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
        return status, lines, trace

    return recorded


def events(trace: Path) -> list[Envelope]:
    with TraceReader(trace) as reader:
        return list(reader.envelopes())


def sampled(envelopes: Sequence[Envelope]) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    found = [e.event for e in envelopes if isinstance(e.event, TokensSampled)]
    return [(event.requests, event.tokens) for event in found]


def findings_told(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("finding: ")]


@pytest.mark.parametrize("fault", [*FAULT_NAMES, None])
def test_the_verdict_told_is_that_of_check(
    fault: str | None, record: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, trace = record(*(("--fault", fault) if fault else ()))
    assert status == 0
    run(["check", str(trace), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    (told,) = [line for line in lines if line.startswith("checked while it ran: ")]
    count = len(report["findings"])
    assert told.startswith(f"checked while it ran: {report['verdict']}, {count} finding")
    assert bool(findings_told(lines)) is bool(fault)


def test_a_line_says_who_read_whose_data_and_which_event_is_to_blame(
    record: Callable[..., Recorded],
) -> None:
    _, lines, trace = record("--fault", "key-no-parent")
    (root,) = check(events(trace)).roots
    culprit = {e.seq: e.position for e in events(trace)}[root.culprit_seq or 0]
    first, *_ = findings_told(lines)
    assert first == (
        f"finding: identity F01 root at {root.position}, victim {root.victim}, "
        f"source {root.source}, culprit {culprit}, decision {root.decision}: {root.explanation}"
    )


def test_the_same_again_is_counted_and_does_not_flood(record: Callable[..., Recorded]) -> None:
    _, lines, trace = record("--fault", "mask-batch-index")
    report = check(events(trace))
    assert len(report.findings) > 100
    told = [line for line in findings_told(lines) if line.startswith("finding: row-identity")]
    counts = [re.search(r"\(([0-9]+) like it by now\)$", line) for line in told]
    assert [found and found[1] for found in counts] == [None, "10", "100"]
    (victims,) = [line for line in lines if line.startswith("victims: ")]
    assert all(finding.victim in victims for finding in report.findings if finding.victim)


@pytest.mark.parametrize("how", ["freeze", "off"])
def test_looking_on_changes_no_token(how: str, record: Callable[..., Recorded]) -> None:
    fault = ("--fault", "key-length-only")
    as_logged = events(record(*fault)[2])
    status, lines, trace = record(*fault, "--on-finding", how)
    assert status == 0
    assert sampled(events(trace)) == sampled(as_logged)
    assert bool(findings_told(lines)) is (how != "off")


def test_raise_ends_the_run_after_the_step_and_the_trace_says_why(
    record: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = events(record("--fault", "key-no-parent")[2])
    status, lines, trace = record("--fault", "key-no-parent", "--on-finding", "raise")
    assert status == 1
    ended = events(trace)
    step = check(ended).roots[0].position.split(":")[0]
    assert ended[-1].step == int(step) < whole[-1].step
    assert [e.event for e in ended[:-1]][1:] == [e.event for e in whole[1 : len(ended) - 1]]
    end = ended[-1].event
    assert isinstance(end, RunEnded)
    assert end.reason == f"the run was ended by identity at {check(ended).roots[0].position}"
    assert any("ended by identity" in line for line in lines)
    with TraceReader(trace) as reader:
        assert reader.complete
    assert run(["check", str(trace)]) == 1
    capsys.readouterr()
    assert run(["replay", str(trace), "--verify"]) == 0
    assert "as far as it was recorded" in capsys.readouterr().out


def test_a_clean_run_is_not_ended(record: Callable[..., Recorded]) -> None:
    status, lines, trace = record("--on-finding", "raise")
    assert status == 0
    assert "checked while it ran: clean, 0 findings" in lines
    end = events(trace)[-1].event
    assert end == RunEnded(reason="completed")


def test_checks_that_fail_are_told_once_and_the_recording_goes_on(
    record: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    see = Inspection.see

    def failing(self: Inspection, envelope: Envelope) -> None:
        if envelope.step == 3:
            raise LookupError("no such thing")
        see(self, envelope)

    whole = events(record()[2])
    monkeypatch.setattr(Inspection, "see", failing)
    status, lines, trace = record()
    assert status == 0
    told = [line for line in lines if "online checks" in line]
    assert len(told) == 1
    assert "the recording goes on" in told[0]
    assert "LookupError('no such thing')" in told[0]
    assert sampled(events(trace)) == sampled(whole)
    assert not [line for line in lines if line.startswith("checked while it ran")]


def test_a_finding_freezes_a_ring_and_changes_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--model", "symbolic", "--fault", "key-no-parent", "--max-new-tokens", "400")
    assert run(["record", *options, "--out", str(tmp_path / "whole.kvtrace")]) == 0
    as_logged = capsys.readouterr().out
    ring = tmp_path / "ring.kvtrace"
    assert run(["record", *options, "--ring", "20steps", "--out", str(ring)]) == 0
    told = capsys.readouterr()
    assert told.out == as_logged
    (root,) = check(events(tmp_path / "whole.kvtrace")).roots
    assert f"(identity at {root.position}); the run went on" in told.err
    kept = events(ring)
    assert len(kept) < len(events(tmp_path / "whole.kvtrace"))
    found = [(f.check, f.position, f.culprit_seq) for f in check(kept).findings]
    assert (root.check, root.position, root.culprit_seq) in found


# --- a run that isn't recorded --------------------------------------------------------------------

POISSON = ("--poisson", "rate=40,count=12,prompt=40..60,output=4..8,prefix=32,shared=1")


def simulated(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, list[str]]:
    capsys.readouterr()
    status = run(["simulate", *POISSON, *options])
    told = capsys.readouterr()
    return status, told.out, [line for line in told.err.splitlines() if line.strip()]


def test_a_simulated_run_can_be_checked_and_measures_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = ("--fault", "key-length-only")
    status, table, lines = simulated(capsys, *fault)
    assert (status, findings_told(lines)) == (0, [])
    status, checked, lines = simulated(capsys, *fault, "--on-finding", "log")
    assert (status, checked) == (0, table)
    assert findings_told(lines)[0].startswith("finding: identity F01 root at ")
    assert any(line.startswith("checked while it ran: contaminated, ") for line in lines)


def test_a_simulated_run_can_be_ended_by_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    fault = ("--fault", "key-length-only")
    status, table, lines = simulated(capsys, *fault, "--on-finding", "raise")
    assert (status, table) == (1, "")
    assert lines[-1].startswith("kvrewind: the run was ended by identity at ")
    assert simulated(capsys, "--on-finding", "raise")[0] == 0


def test_each_run_of_a_comparison_is_checked_by_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, _, lines = simulated(capsys, "--on-finding", "log", "--compare", "num-blocks=64,128")
    assert lines.count("checked while it ran: clean, 0 findings") == 2


# --- under redaction ------------------------------------------------------------------------------


def test_a_redacted_run_is_checked_and_its_passphrases_are_listened_for(
    record: Callable[..., Recorded],
) -> None:
    _, in_clear, clear = record("--fault", "key-no-parent")
    _, lines, trace = record("--fault", "key-no-parent", "--redact")
    words = [e.event.passphrase for e in events(clear) if isinstance(e.event, RequestAdded)]
    assert any(line.startswith("finding: passphrase F20 at ") for line in in_clear)
    assert sorted(findings_told(lines)) == sorted(findings_told(in_clear))
    assert "checked while it ran: contaminated, 2 findings (identity 1, foreign-read 1)" in lines
    assert len(list(filter(None, words))) > 5
    assert not [word for word in filter(None, words) if word.encode() in trace.read_bytes()]


def test_where_names_are_redacted_no_finding_tells_one(record: Callable[..., Recorded]) -> None:
    _, lines, trace = record("--fault", "key-no-parent", "--redact=all")
    told = findings_told(lines)
    assert {line.split()[1] for line in told} == {"identity", "foreign-read", "passphrase"}
    assert not [line for line in told if re.search(r"\br[0-9]\b", line)]
    known = {e.event.request for e in events(trace) if isinstance(e.event, RequestAdded)}
    victims = {re.search(r"victim (\S+),", line)[1] for line in told}  # type: ignore[index]
    assert len(victims) == 1
    assert victims <= known
