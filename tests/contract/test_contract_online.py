"""Whatever `check` finds of a mechanism that went wrong, the checks had told while it ran."""

from __future__ import annotations

import io
from itertools import groupby

import pytest
from breaking import renumbered
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.replay.check import Inspection, check
from kvrewind.replay.online import OnlineChecks
from kvrewind.replay.sightings import Sighting
from mechanisms import TWINS, Twin


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_what_is_found_afterwards_was_told_in_time(twin: Twin) -> None:
    trace = twin.scene()
    twin.breaks(trace)
    envelopes = list(read_jsonl(io.StringIO(renumbered(trace).text()), "twin.jsonl"))
    told: list[Sighting] = []
    checks = OnlineChecks(told.append)
    for _, step in groupby(envelopes, key=lambda envelope: envelope.step):
        checks(list(step))
    assert checks.failure is None
    report = checks.report()
    assert report == check(envelopes)
    named = {(s.finding.check, s.finding.fault_class, s.finding.culprit_seq) for s in told}
    assert {(f.check, f.fault_class, f.culprit_seq) for f in report.roots} <= named
    assert checks.by_check.total() == len(report.findings)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_what_is_over_can_be_forgotten_after_any_step(twin: Twin) -> None:
    trace = twin.scene()
    twin.breaks(trace)
    envelopes = list(read_jsonl(io.StringIO(renumbered(trace).text()), "twin.jsonl"))
    inspection = Inspection()
    for _, step in groupby(envelopes, key=lambda envelope: envelope.step):
        for envelope in step:
            inspection.see(envelope)
        inspection.forget()
    assert inspection.report() == check(envelopes)
