"""The report for people: one screen that ends in the decision to blame."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import Trace
from hypothesis import given, settings
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockReleased,
    BlockShared,
    Envelope,
)
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.findings import Finding
from kvrewind.replay.incidents import incidents
from kvrewind.replay.pieces import Pieces
from kvrewind.replay.pool_strip import pool_strip
from kvrewind.replay.provenance import chain
from kvrewind.replay.report import incident_lines, render
from kvrewind.replay.source import EnvelopeList
from kvrewind.replay.timeline import Timeline
from kvrewind.replay.verdict import Report
from kvrewind.replay.wording import counted, elided, ordinal, ranges
from recorded import recorded
from strategies import traces

NAMES = [fault.name for fault in FAULTS]


def lines_of(*faults: str) -> list[str]:
    events = recorded(*faults)
    return render(check(events), events).plain.splitlines()


def after(label: str, lines: list[str]) -> str:
    """What stands under a label, lines that it was wrapped into included."""
    start = next(i for i, line in enumerate(lines) if line.startswith(f"  {label}"))
    end = start + 1
    while end < len(lines) and lines[end].startswith(" " * 18):
        end += 1
    texts = [lines[start].removeprefix(f"  {label}"), *lines[start + 1 : end]]
    return " ".join(text.strip() for text in texts)


@pytest.mark.parametrize("fault", NAMES)
def test_a_chain_agrees_with_what_the_check_found(fault: str) -> None:
    events = recorded(fault)
    moments = Timeline(events)
    for incident in incidents(check(events)):
        links = chain(moments, incident.shown, incident.root)
        assert links.culprit is not None and links.culprit.seq == incident.root.culprit_seq
        assert links.read is not None and links.read.request == incident.shown.victim
        assert {written.request for written in links.written} == {incident.shown.source}
        assert incident.shown.slot in links.read.slots
        assert (
            max(written.seq for written in links.written)
            < moments.span_of_step(links.read.step).last_seq
        )


@pytest.mark.parametrize("fault", NAMES)
def test_an_incident_fits_on_a_screen_and_names_the_decision(fault: str) -> None:
    events = recorded(fault)
    report, moments = check(events), Timeline(events)
    (incident,) = incidents(report)
    lines = [line.plain for line in incident_lines(moments, incident, report, Pieces())]
    assert len(lines) <= 24 and max(map(len, lines)) <= 100
    culprit = moments.at(incident.root.culprit_seq or 0)
    allowed = after("ALLOWED by", lines)
    assert allowed.startswith(f"event {culprit.seq}, step {culprit.step} ({culprit.position}): ")
    assert f"decision {incident.root.decision}" in allowed
    first = next(line for line in lines if line.startswith("contaminated: "))
    read = after("READ by", lines)
    assert f"request {incident.shown.victim} read" in first
    assert read.startswith(f"{incident.shown.victim}, row ")
    assert after("last WRITTEN by", lines).startswith(f"{incident.shown.source}, ")
    assert f"{incident.shown.source} wrote" in first


def test_a_shared_block_is_blamed_for_its_first_token_that_differs() -> None:
    events, lines = recorded("key-length-only"), lines_of("key-length-only")
    shared = next(
        e
        for e in events
        if isinstance(e.event, BlockShared) and (e.event.request, e.event.index) == ("r1", 2)
    )
    requests = Timeline(events).state_at(shared.seq).requests
    theirs, mine = requests["r0"].tokens, requests["r1"].tokens
    differs = next(p for p in range(32, 48) if theirs[p] != mine[p])
    pieces = Pieces.of(EnvelopeList(events))
    assert after("ALLOWED by", lines) == (
        f"event {shared.seq}, step 2 ({shared.position}): block 2 was shared with request r1 "
        f"although its {ordinal(differs - 31)} token differs: position {differs} is "
        f"{pieces.token(mine[differs])} in r1, {pieces.token(theirs[differs])} in what r0 wrote "
        "decision share:r1:2:0"
    )
    written = pieces.quoted(theirs[differs:48])
    assert written.startswith("'") and written in after("last WRITTEN by", lines)


def test_a_forgotten_parent_is_blamed_for_the_position() -> None:
    root = incidents(check(recorded("key-no-parent")))[0].root
    assert (
        f"block {root.block} was shared with request {root.victim} although its first slot is "
        f"position 16 of {root.source}, who wrote it, and position 0 of {root.victim}"
    ) in after("ALLOWED by", lines_of("key-no-parent"))


def test_a_block_freed_while_held_is_blamed_with_its_holders() -> None:
    events, lines = recorded("free-while-shared"), lines_of("free-while-shared")
    (incident,) = incidents(check(events))
    culprit = Timeline(events).at(incident.root.culprit_seq or 0)
    assert isinstance(culprit.event, BlockFreed)
    block = culprit.event.block
    holders = Timeline(events).state_at(culprit.seq).pool().block(block).holders
    names = elided([holder.request for holder in holders], 4)
    assert len(holders) > 1
    assert f"block {block} was freed while {names} still held it" in after("ALLOWED by", lines)
    assert culprit.position in after("FREED", lines)


def test_a_kept_table_entry_is_blamed_on_the_release_and_shows_the_new_owner() -> None:
    events, lines = recorded("table-keeps-freed"), lines_of("table-keeps-freed")
    (incident,) = incidents(check(events))
    released = Timeline(events).at(incident.root.culprit_seq or 0)
    event = released.event
    assert isinstance(event, BlockReleased)
    assert (
        f"request {event.request} gave up block {event.block} and its block table kept it "
        f"at index {event.index}"
    ) in after("ALLOWED by", lines)
    assert after("RELEASED by", lines).startswith(f"{event.request} at index {event.index}")
    given = [
        e.position
        for e in events
        if isinstance(e.event, BlockAllocated) and e.event.block == event.block
    ]
    owners = [line for line in lines if line.startswith("  ALLOCATED to")]
    assert [line.split()[-1] in given for line in owners] == [True, True]
    assert owners[0].split()[2] == event.request != owners[1].split()[2]


@pytest.mark.parametrize("fault", ["mask-batch-index", "mask-broadcast-wrong-axis"])
def test_a_wrong_mask_is_blamed_with_its_exact_index(fault: str) -> None:
    (incident,) = incidents(check(recorded(fault)))
    root = incident.root
    exactly = after("EXACTLY", lines_of(fault))
    assert exactly.startswith(f"row {root.row}, query {root.query}, key {root.key}")
    assert exactly.endswith(f"expected {root.expected}, actual {root.actual}")


def test_a_mask_that_shows_too_much_is_blamed_with_whose_slot_it_shows() -> None:
    events, lines = recorded("mask-broadcast-wrong-axis"), lines_of("mask-broadcast-wrong-axis")
    root = incidents(check(events))[0].root
    assert root.slot is not None and root.culprit_seq is not None
    block = root.slot // 16
    (holder,) = Timeline(events).state_at(root.culprit_seq).pool().block(block).holders
    assert (
        f"the mask of row {root.row} ({root.victim}) lets query {root.query} see key {root.key}, "
        f"slot {root.slot} in block {block} of {holder.request} "
    ) in after("ALLOWED by", lines)


def test_many_findings_take_one_line_each_and_the_rest_is_counted() -> None:
    events = recorded("mask-batch-index")
    report = check(events)
    lines = render(report, events).plain.splitlines()
    head = next(i for i, line in enumerate(lines) if " other findings (" in line)
    count = int(lines[head].split()[0])
    assert count == len(report.findings) - 2
    assert lines[-2] == f"  and {count - 12} more"
    assert len(lines) < 50


def test_a_clean_run_is_told_in_one_line() -> None:
    assert lines_of() == [f"clean: 0 findings in {len(recorded())} events"]


def test_what_was_not_recorded_is_listed() -> None:
    missing = tuple(f"event kind {i} is not logged" for i in range(9))
    lines = render(Report("incomplete", (), missing), recorded()[:50]).plain.splitlines()
    assert lines[0] == "incomplete: 0 findings in 50 events"
    assert after("missing", lines).startswith(missing[0])
    assert lines[-1].strip() == "and 3 more"


def test_a_broken_rule_that_nobody_read_through_is_a_violation() -> None:
    finding = Finding(
        check="ref-count", fault_class="F06", root=True, position="1:9", seq=9, culprit_seq=9,
        block=1, explanation="block 1 has 2 holders and counts 1",
    )  # fmt: skip
    lines = render(Report("violated", (finding,)), recorded()).plain.splitlines()
    assert lines[1].startswith("violated: block 1 has 2 holders and counts 1")
    assert after("SEEN at", lines) == "1:9 by ref-count"
    assert "event 9, step 1 (1:9): block 1 has 2 holders and counts 1" in after("ALLOWED by", lines)


def test_a_difference_without_a_culprit_says_so() -> None:
    finding = Finding(
        check="digest", fault_class="F20", root=True, position="3:90", seq=90, culprit_seq=None,
        explanation="block 1 changed without a write",
    )  # fmt: skip
    lines = render(Report("unexplained", (finding,)), recorded()).plain.splitlines()
    assert lines[1].startswith("unexplained: block 1 changed")
    assert after("ALLOWED by", lines).startswith("no event that was logged")


@settings(max_examples=100, deadline=None)
@given(traces())
def test_whatever_the_events_there_is_a_report(events: list[Envelope]) -> None:
    report = check(events)
    lines = render(report, events).plain.splitlines()
    assert any(line.startswith(f"{report.verdict}: ") for line in lines)
    assert sum(line.startswith("=====") for line in lines) == len(report.roots)


def test_a_narrow_terminal_gets_narrow_lines() -> None:
    events = recorded("key-length-only")
    lines = render(check(events), events, width=70).plain.splitlines()
    assert max(len(line) for line in lines if "[+]" not in line) <= 70


def test_a_trace_file_gives_the_same_report(tmp_path: Path) -> None:
    events = recorded("free-while-shared")
    with TraceWriter(tmp_path / "run.kvtrace") as writer:
        writer.write_envelopes(events)
    with TraceReader(tmp_path / "run.kvtrace") as reader:
        report = check(reader.envelopes())
        lines = render(report, Timeline(reader)).plain.splitlines()
    assert lines == lines_of("free-while-shared")


# --- its parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", NAMES)
def test_every_finding_belongs_to_its_incident(fault: str) -> None:
    report = check(recorded(fault))
    gathered = [f for i in incidents(report) for f in (i.root, *i.others)]
    assert sorted(map(id, gathered)) == sorted(map(id, report.findings))


def test_two_wrong_decisions_are_two_incidents() -> None:
    def finding(culprit: int, **more: Any) -> Finding:
        given: dict[str, Any] = {
            "check": "identity", "fault_class": "F01", "root": False, "seq": culprit + 1,
            "position": f"1:{culprit + 1}", "culprit_seq": culprit, "explanation": "wrong",
        }  # fmt: skip
        return Finding(**given | more)

    one, other = finding(5, root=True), finding(9, root=True, fault_class="F02")
    again, read = finding(30), finding(9, check="foreign-read", fault_class="F02", victim="B")
    first, second = incidents(Report("contaminated", (one, other, again, read)))
    assert (first.root, first.others, first.shown) == (one, (again,), one)
    assert (second.root, second.others, second.shown) == (other, (read,), read)


def test_the_strip_marks_the_block_and_gives_owners_letters() -> None:
    trace = Trace(num_blocks=40, block_size=4, sentinels=(0,))
    trace.add("A", range(8))
    trace.add("B", range(8))
    trace.allocate("A", 0, 1)
    trace.share("B", 0, 1, "k0")
    trace.allocate("A", 1, 2)
    trace.allocate("B", 1, 4)
    trace.allocate("B", 2, 5)
    trace.free(5)
    state = Timeline(trace.envelopes()).state_at(8)
    rows = [line.plain for line in pool_strip(state, 0, 1)]
    assert rows[0].startswith("=>     0:  # [+] A  .  B  !  . ")
    assert rows[1].startswith("      16:  .  . ") and len(rows) == 3
    legend = ("A A", "B B", "+ shared", ". free", "! free and held", "# sentinel", "[+] A, B")
    assert rows[-1].strip().split("   ") == list(legend)


def test_pieces_are_joined_as_their_tokenizer_would() -> None:
    assert Pieces({1: "be", 2: "##mo", 3: "is"}).quoted([3, 1, 2]) == "'is bemo'"
    assert Pieces({1: "Ġbe", 2: "mo", 3: "Ġis"}).quoted([3, 1, 2]) == "'is bemo'"
    assert Pieces({1: " be", 2: "mo"}).quoted([1, 2, 1]) == "'bemo be'"
    assert Pieces({1: "be"}).quoted([1, 7]) == "tokens 1, 7"
    assert Pieces().quoted([7]) == "token 7"
    assert Pieces({1: "x" * 90}).quoted([1]) == repr("x" * 39 + "…")


def test_numbers_are_told_briefly() -> None:
    assert ranges([1, 2, 3, 7, 9, 10]) == "1..3, 7, 9..10"
    assert elided(list("abcdef"), 3) == "a, b, c and 3 more"
    assert elided(list("abcd"), 3) == "a, b, c, d"
    assert [ordinal(n) for n in (1, 3, 9, 11, 21, 22, 112, 123)] == [
        "first", "third", "ninth", "11th", "21st", "22nd", "112th", "123rd",
    ]  # fmt: skip
    assert (counted(1, "slot"), counted(0, "slot")) == ("1 slot", "0 slots")


def test_long_names_stay_whole_in_the_text_and_keep_their_ends_in_the_legend() -> None:
    def renamed(event: Any) -> Any:
        names = {f"r{i}": f"production-eu-west/customer-{i}" for i in range(9)}
        changed = {}
        for field in ("request", "requests"):
            value = getattr(event, field, None)
            if isinstance(value, tuple):
                changed[field] = tuple(names.get(name, name) for name in value)
            elif value is not None:
                changed[field] = names[value]
        return replace(event, **changed)

    events = [e._replace(event=renamed(e.event)) for e in recorded("key-length-only")]
    text = render(check(events), events).plain
    assert "production-eu-west/customer-1" in text.splitlines()[1]
    legend = [line for line in text.splitlines() if "+ shared" in line or "A prod" in line]
    assert any("/customer-0" in line for line in legend)
    assert all(len(line) <= 100 for line in text.splitlines())
