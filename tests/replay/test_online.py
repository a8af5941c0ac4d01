"""Checks while a run goes on find what `check` finds afterwards, and say it when it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import pytest
from builders import Trace
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import Envelope, PiecesDefined
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay import online
from kvrewind.replay.check import Inspection, check
from kvrewind.replay.online import FindingMade, OnlineChecks
from kvrewind.replay.sightings import Sighting
from recorded import recorded
from scenes import shared_prefix

FAULT_NAMES = [fault.name for fault in FAULTS]


def steps(envelopes: Sequence[Envelope]) -> Iterator[list[Envelope]]:
    for _, step in groupby(envelopes, key=lambda envelope: envelope.step):
        yield list(step)


def watched(envelopes: Sequence[Envelope]) -> tuple[OnlineChecks, list[Sighting]]:
    told: list[Sighting] = []
    checks = OnlineChecks(told.append)
    for step in steps(envelopes):
        checks(step)
    return checks, told


@pytest.mark.parametrize("fault", [*FAULT_NAMES, None])
def test_the_verdict_at_the_end_is_that_of_check(fault: str | None) -> None:
    envelopes = recorded(*([fault] if fault else []))
    checks, _ = watched(envelopes)
    report = checks.report()
    assert report == check(envelopes)
    assert bool(report.findings) is bool(fault)
    assert checks.findings == report.findings


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_each_finding_is_told_once_and_in_its_step(fault: str) -> None:
    envelopes = recorded(fault)
    told: list[Sighting] = []
    checks = OnlineChecks(told.append)
    for step in steps(envelopes):
        before = len(told)
        checks(step)
        assert {sighting.finding.position.split(":")[0] for sighting in told[before:]} <= {
            str(step[0].step)
        }
    found = [s.finding for s in told if s.finding.check != "passphrase" and not s.is_revised]
    at_the_end = [(f.check, f.seq, f.victim, f.source) for f in checks.report().findings]
    assert sorted(at_the_end, key=str) == sorted(
        ((f.check, f.seq, f.victim, f.source) for f in found), key=str
    )


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_the_first_that_is_told_is_the_root_of_the_report(fault: str) -> None:
    envelopes = recorded(fault)
    checks, told = watched(envelopes)
    root = checks.report().roots[0]
    assert told[0].finding.root
    assert checks.first is told[0]
    assert (told[0].finding.check, told[0].finding.culprit_seq) == (root.check, root.culprit_seq)
    of = {envelope.seq: envelope.position for envelope in envelopes}
    assert told[0].culprit_position == of[root.culprit_seq or 0]


def test_the_same_wrong_decision_again_is_counted() -> None:
    _, told = watched(recorded("key-length-only"))
    shares = [s for s in told if s.finding.check == "identity"]
    assert [s.count for s in shares] == list(range(1, len(shares) + 1))
    assert [s.finding.root for s in shares] == [True] + [False] * (len(shares) - 1)


def test_findings_are_counted_by_check() -> None:
    checks, _ = watched(recorded("free-while-shared"))
    counts = Counter(finding.check for finding in checks.report().findings)
    assert {name: n for name, n in checks.by_check.items() if name != "passphrase"} == counts


def test_a_clean_run_tells_nothing_and_does_not_raise() -> None:
    checks, told = watched(recorded())
    assert told == []
    assert checks.first is None
    assert not checks.by_check
    checks.raise_if_found()


def test_a_finding_can_end_the_run() -> None:
    checks, told = watched(recorded("key-no-parent"))
    with pytest.raises(FindingMade, match=f"identity at {told[0].finding.position}") as ended:
        checks.raise_if_found()
    assert ended.value.exit_status == 1


def test_a_check_that_fails_is_told_once_and_makes_the_verdict_incomplete() -> None:
    failures: list[Exception] = []
    checks = OnlineChecks(on_failure=failures.append)
    first, second, *rest = steps(recorded())
    checks(first)
    checks([replace_event(second[0]), *second[1:]])
    for step in rest:
        checks(step)
    assert failures == [checks.failure]
    report = checks.report()
    assert report.verdict == "incomplete"
    assert "online checks stopped" in report.missing[0]


def replace_event(envelope: Envelope) -> Envelope:
    """One that no decoder gives."""
    return envelope._replace(event=PiecesDefined(tokens=(1,), pieces=None))  # type: ignore[arg-type]


# --- passphrases ----------------------------------------------------------------------------------


def spoken(text: str, *, prompt: str = "say it", revealed: str = "") -> list[Envelope]:
    """A is given a passphrase; B, who shares nothing, says `text`, a piece at a time."""
    words = [f" {word}" for word in (prompt + " " + revealed).split()]
    said = text.split("|")
    vocabulary = {piece: token for token, piece in enumerate(dict.fromkeys([*words, *said]))}
    trace = Trace()
    trace.next_step()
    trace.add("A", [900, 901], passphrase="Zorvix")
    trace.allocate("A", 0, 0)
    trace.add("B", [vocabulary[word] for word in words])
    trace.emit(PiecesDefined(tokens=tuple(vocabulary.values()), pieces=tuple(vocabulary)))
    for index in range((len(words) + len(said)) // trace.size + 1):
        trace.allocate("B", index, index + 1)
    trace.step(("A", 0, 2), ("B", 0, len(words)), sample={"B": vocabulary[said[0]]})
    for number, piece in enumerate(said[1:]):
        trace.next_step()
        trace.step(("B", len(words) + number, 1), sample={"B": vocabulary[piece]})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    return trace.envelopes()


def test_a_passphrase_in_the_words_of_another_is_unexplained_where_every_read_is_legal() -> None:
    envelopes = spoken("it| is| zor|VIX|!")
    checks, told = watched(envelopes)
    (sighting,) = told
    found = sighting.finding
    assert (found.check, found.fault_class, found.root) == ("passphrase", "F20", True)
    assert (found.victim, found.source, found.culprit_seq) == ("B", "A", None)
    last = [e for e in envelopes if e.kind == "TokensSampled"][3]
    assert found.position == last.position, "told with the token that completes it"
    report = checks.report()
    assert report == check(envelopes)
    assert report.verdict == "unexplained"
    assert checks.by_check == {"passphrase": 1}


@pytest.mark.parametrize(
    ("text", "revealed"),
    [("it| is| zor|vi|!", ""), ("it| is| zor|vix|!", "zorvix"), ("zor| vix", "")],
    ids=["another word", "in its own prompt", "two words"],
)
def test_what_is_no_leak_of_a_passphrase(text: str, revealed: str) -> None:
    report = check(spoken(text, revealed=revealed))
    assert report.verdict == "clean"


def test_a_passphrase_that_a_leak_explains_triggers_and_is_no_finding_of_its_own() -> None:
    checks, told = watched(recorded("key-length-only"))
    assert "passphrase" in {sighting.finding.check for sighting in told}
    report = checks.report()
    assert report.verdict == "contaminated"
    assert "passphrase" not in {finding.check for finding in report.findings}


def test_a_prefix_that_may_be_shared_is_no_finding() -> None:
    checks, told = watched(shared_prefix().envelopes())
    assert told == []
    assert checks.report().verdict == "clean"


# --- for days -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [*FAULT_NAMES, None])
def test_what_is_over_can_be_forgotten_after_any_step(fault: str | None) -> None:
    envelopes = recorded(*([fault] if fault else []))
    inspection = Inspection()
    for step in steps(envelopes):
        for envelope in step:
            inspection.see(envelope)
        inspection.forget()
    assert inspection.report() == check(envelopes)


def busy() -> list[Envelope]:
    """Some hundred requests one after the other, in a small pool."""
    sink = MemorySink()
    config = EngineConfig(num_blocks=24, block_size=4, max_num_seqs=6, host_blocks=8)
    prompts = [
        Prompt(
            request=f"r{number}",
            prompt_tokens=(*range(10, 10 + 4 * (number % 4)), *range(50 + number % 7, 60)),
            max_new_tokens=6,
            arrival_step=1 + number,
        )
        for number in range(150)
    ]
    make_engine(SymbolicModel(), config, prompts, sink).run(2000)
    return sink.envelopes


def test_of_a_long_run_only_what_is_alive_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "OVERWRITTEN_KEPT", 100)
    envelopes = busy()
    checks, _ = watched(envelopes)
    assert checks.failure is None
    assert checks.report() == check(envelopes)
    half, _ = watched([e for e in envelopes if e.step <= envelopes[-1].step // 2])
    assert held(checks._inspection) < 1.3 * held(half._inspection)
    monkeypatch.setattr(online, "OVERWRITTEN_KEPT", 1 << 60)
    everything, _ = watched(envelopes)
    assert held(everything._inspection) > 3 * held(checks._inspection)


def test_a_run_that_breaks_rules_for_ever_is_not_followed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online, "VIOLATIONS_KEPT", 40)
    failures: list[Exception] = []
    checks = OnlineChecks(on_failure=failures.append)
    for step in steps(recorded("mask-batch-index")):
        checks(step)
    assert [type(error) for error in failures] == [online.TooManyFindings]
    report = checks.report()
    assert 20 < len(report.findings) < 80
    assert report.verdict == "contaminated"
    assert "TooManyFindings" in report.missing[0]


def held(value: object, seen: set[int] | None = None) -> int:
    """Entries of all collections that can be reached from our own objects."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, dict):
        return len(value) + sum(held(item, seen) for item in value.values())
    if isinstance(value, list | set | frozenset | tuple):
        return len(value) + sum(held(item, seen) for item in value)
    if not type(value).__module__.startswith("kvrewind.replay"):
        return 0
    names = [n for cls in type(value).__mro__ for n in getattr(cls, "__slots__", ())]
    parts = [getattr(value, n) for n in names if hasattr(value, n)]
    return sum(held(part, seen) for part in (*parts, *getattr(value, "__dict__", {}).values()))
