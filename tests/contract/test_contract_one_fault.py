"""Over random workloads: a clean run has no finding, and one fault explains all that is found."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.faults.base import Fault
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.replay.check import check
from mixes import recorded, runs


@settings(max_examples=50, deadline=None)
@given(runs())
def test_a_clean_run_of_any_switches_has_no_finding(run) -> None:
    assert check(recorded(run)).findings == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_one_planted_fault_is_the_class_of_every_finding(fault: Fault, data: st.DataObject) -> None:
    report = check(recorded(data.draw(runs(fault.name))))
    assert {f.fault_class for f in report.findings} <= {fault.fault_class}
    assert {f.check for f in report.findings} <= {fault.check, "foreign-read"}
    assert [f.check for f in report.roots] in ([], [fault.check])


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_two_planted_faults_are_the_classes_of_all_findings(data: st.DataObject) -> None:
    pairs = list(combinations(FAULTS, 2))
    two = data.draw(st.sampled_from(pairs))
    report = check(recorded(data.draw(runs(*(fault.name for fault in two)))))
    assert {f.fault_class for f in report.findings} <= {fault.fault_class for fault in two}
