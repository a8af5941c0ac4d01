"""A trace in ui.perfetto.dev: what is on which track, and that the file obeys the format."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trace_event_rules as rules
from hypothesis import given, settings
from kvrewind.recorder.events import (
    Envelope,
    Event,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TransferFinished,
    TransferStarted,
)
from kvrewind.replay.check import check
from kvrewind.replay.exports.perfetto import write_perfetto
from kvrewind.replay.source import EnvelopeList
from recorded import recorded
from strategies import header, traces

LEAK = recorded("key-length-only")


def written(envelopes: Sequence[Envelope]) -> str:
    stream = io.StringIO()
    write_perfetto(EnvelopeList(envelopes), stream)
    return stream.getvalue()


def drawn(envelopes: Sequence[Envelope]) -> rules.Records:
    return rules.obeying(written(envelopes))


def about(envelopes: Sequence[Envelope]) -> dict[str, Any]:
    return json.loads(written(envelopes))["otherData"]


def told(*events: tuple[int, int, Event], rank: int = 0) -> list[Envelope]:
    """Events as (microseconds, step, event), behind a header."""
    all_events = [(0, 0, header()), *events]
    return [
        Envelope(seq, step, us * 1000, rank, event)
        for seq, (us, step, event) in enumerate(all_events)
    ]


def added(request: str = "a", prompt: int = 8) -> RequestAdded:
    return RequestAdded(request=request, prompt_tokens=(7,) * prompt, max_new_tokens=4)


def scheduled(request: str, phase: Any, computed: int = 0) -> StepScheduled:
    return StepScheduled(
        requests=(request,), computed=(computed,), scheduled=(1,), phases=(phase,)
    )  # fmt: skip


def tracks(records: rules.Records) -> dict[str, tuple[int, int]]:
    return {r["args"]["name"]: rules.track(r) for r in rules.of(records, "M", name="thread_name")}


def slices_on(records: rules.Records, name: str) -> list[tuple[str, float, float]]:
    pid, tid = tracks(records)[name]
    found = rules.of(records, "X", pid=pid, tid=tid)
    return sorted(
        ((r["name"], r["ts"], r["ts"] + r["dur"]) for r in found), key=lambda s: (s[1], -s[2])
    )


@given(traces())
@settings(max_examples=60)
def test_any_events_at_all_give_a_file_that_obeys_the_format(envelopes: list[Envelope]) -> None:
    drawn(envelopes)


@pytest.mark.parametrize("fault", ["key-length-only", "free-while-shared", "table-keeps-freed"])
def test_a_recorded_run_gives_a_file_that_obeys_the_format(fault: str) -> None:
    records = drawn(recorded(fault))
    assert {r["ph"] for r in records} >= set("XiCMsf")


def test_a_request_waits_is_computed_is_preempted_and_ends() -> None:
    records = drawn(
        told(
            (10, 1, added()),
            (15, 1, scheduled("a", "prefill")),
            (40, 2, scheduled("a", "decode")),
            (50, 3, scheduled("a", "decode")),
            (60, 4, RequestPreempted(request="a", reason="no block left")),
            (70, 5, scheduled("a", "prefill")),
            (90, 5, RequestFinished(request="a", reason="eos")),
        )
    )
    assert slices_on(records, "a") == [
        ("waiting", 10, 15), ("prefill", 15, 40), ("decode", 40, 60), ("preempted", 60, 70),
        ("prefill", 70, 90),
    ]  # fmt: skip
    (last,) = rules.of(records, "X", name="prefill", ts=70)
    assert last["args"]["finished"] == "eos"


def test_a_step_shows_its_parts() -> None:
    records = drawn(
        told(
            (10, 1, added()),
            (12, 1, scheduled("a", "prefill")),
            (15, 1, StepDispatched()),
            (35, 1, StepCompleted()),
            (36, 1, RequestFinished(request="a", reason="length")),
        )
    )
    assert slices_on(records, "steps") == [
        ("step 1", 10, 36), ("schedule", 10, 12), ("build", 12, 15), ("compute", 15, 35),
        ("account", 35, 36),
    ]  # fmt: skip
    (step,) = rules.of(records, "X", name="step 1")
    assert step["args"]["first_event"] == "1:1"
    assert (step["args"]["rows"], step["args"]["prefill_rows"]) == (1, 1)


def test_steps_in_flight_together_lie_side_by_side() -> None:
    records = drawn(
        told(
            (10, 1, added()),
            (11, 1, scheduled("a", "prefill")),
            (12, 1, StepDispatched()),
            (20, 2, scheduled("a", "decode")),
            (21, 2, StepDispatched()),
            (30, 1, StepCompleted()),
            (40, 2, StepCompleted()),
            (50, 3, scheduled("a", "decode")),
            (51, 3, StepCompleted()),
        )
    )
    whole = {"step 1": "steps", "step 2": "steps, 2 in flight", "step 3": "steps"}
    for step, track in whole.items():
        assert step in [name for name, *_ in slices_on(records, track)]


def test_findings_are_instants_with_an_arrow_from_what_allowed_them() -> None:
    records = drawn(LEAK)
    findings = check(LEAK).findings
    instants = [r for r in rules.of(records, "i", cat="finding") if "explanation" in r["args"]]
    assert sorted(r["args"]["explanation"] for r in instants) == sorted(
        f.explanation for f in findings
    )
    owner = {track: name for name, track in tracks(records).items()}
    by_explanation = {r["args"]["explanation"]: r for r in instants}
    reads = [f for f in findings if f.check == "foreign-read"]
    assert reads
    for finding in reads:
        instant = by_explanation[finding.explanation]
        assert owner[rules.track(instant)] == finding.victim
        assert instant["args"]["position"] == finding.position
    starts, ends = rules.of(records, "s"), rules.of(records, "f")
    later = [f for f in findings if f.culprit_seq is not None and f.culprit_seq < f.seq]
    assert len(starts) == len(ends) == len(later) > 3
    at = {e.seq: e.t_ns / 1000 for e in LEAK}
    assert sorted(r["ts"] for r in starts) == sorted(at[f.culprit_seq or 0] for f in later)
    assert sorted(r["ts"] for r in ends) == sorted(at[f.seq] for f in later)


def test_the_pool_and_the_hit_rate_are_counters() -> None:
    records = drawn(LEAK)
    blocks = [r["args"] for r in rules.of(records, "C", name="blocks")]
    assert {sum(values.values()) for values in blocks} == {22}
    assert max(values["held"] for values in blocks) >= 4
    assert blocks[-1]["held"] == 0
    rates = [r["args"]["%"] for r in rules.of(records, "C", name="prefix hit rate")]
    assert rates[0] == 0
    assert 0 < rates[-1] <= 100
    running = [r["args"]["running"] for r in rules.of(records, "C", name="requests")]
    assert max(running) > 1
    assert running[-1] == 0


def test_the_hit_rate_is_the_share_of_prompts_that_was_there_already() -> None:
    records = drawn(
        told(
            (10, 1, added("a", 8)),
            (11, 1, scheduled("a", "prefill", 0)),
            (20, 2, added("b", 8)),
            (21, 2, scheduled("b", "prefill", 6)),
            (30, 3, scheduled("b", "prefill", 7)),
        )
    )
    rates = [r["args"]["%"] for r in rules.of(records, "C", name="prefix hit rate")]
    assert rates == [0, 37.5]


def test_transfers_may_overlap() -> None:
    start = {"direction": "store", "blocks": (1, 2), "keys": ("k", "l")}
    records = drawn(
        told(
            (10, 1, TransferStarted(transfer="x", **start)),
            (20, 1, TransferStarted(transfer="y", **start)),
            (30, 2, TransferFinished(transfer="x", status="ok")),
            (31, 2, TransferStarted(transfer="x", **start)),
            (40, 2, TransferFinished(transfer="y", status="failed")),
        )
    )
    begun, ended = rules.of(records, "b"), rules.of(records, "e")
    times = {r["id"]: r["ts"] for r in begun}
    spans = sorted((times[r["id"]], r["ts"], r["args"]["status"]) for r in ended)
    assert spans == [(10, 30, "ok"), (20, 40, "failed"), (31, 40, "not finished")]
    assert begun[0]["args"]["blocks"] == 2


def test_a_transfer_that_begins_twice_ends_where_it_begins_again() -> None:
    start = {"direction": "load", "blocks": (1,), "keys": ("k",)}
    records = drawn(
        told(
            (10, 1, TransferStarted(transfer="x", **start)),
            (20, 1, TransferStarted(transfer="x", **start)),
            (30, 1, TransferFinished(transfer="x", status="ok")),
        )
    )
    ended = [(r["ts"], r["args"]["status"]) for r in rules.of(records, "e")]
    assert ended == [(20, "begun again"), (30, "ok")]


def test_without_times_an_event_takes_a_microsecond_and_the_file_says_so() -> None:
    timeless = [e._replace(t_ns=0) for e in LEAK]
    assert about(LEAK)["clock"] == "recorded"
    assert about(timeless)["clock"].startswith("made up")
    assert "no times were recorded" in about(timeless)["clock"]
    records = drawn(timeless)
    (first,) = rules.of(records, "X", name="step 1")
    assert (first["ts"], first["dur"]) == (1, 25)
    assert any("an event a µs" in name for name in tracks(records))


def test_times_that_run_backwards_are_not_drawn() -> None:
    jumping = [*LEAK[:9], LEAK[9]._replace(t_ns=1), *LEAK[10:]]
    assert f"run backwards at {LEAK[9].position}" in about(jumping)["clock"]


def test_what_was_dropped_ends_what_was_going_on() -> None:
    records = drawn(
        told(
            (10, 1, added()),
            (11, 1, scheduled("a", "prefill")),
            (30, 2, SpanDropped(first_seq=3, count=4, why="the disk was full")),
            (40, 3, scheduled("a", "decode")),
        )
    )
    assert slices_on(records, "a") == [("prefill", 11, 30), ("decode", 40, 40)] or slices_on(
        records, "a"
    ) == [("waiting", 10, 11), ("prefill", 11, 30), ("decode", 40, 40)]
    (dropped,) = rules.of(records, "i", name="4 events dropped")
    assert dropped["args"]["why"] == "the disk was full"


def test_ranks_have_tracks_of_their_own() -> None:
    one = told((10, 1, added()), (11, 1, scheduled("a", "prefill")))
    other = told((10, 1, added("b")), (11, 1, scheduled("b", "prefill")), rank=1)
    both = [e._replace(seq=seq) for seq, e in enumerate([*one, *other])]
    names = {r["args"]["name"]: r["pid"] for r in rules.of(drawn(both), "M", name="process_name")}
    assert set(names) == {"engine", "requests", "engine of rank 1", "requests of rank 1"}
    assert len(set(names.values())) == 4


def test_the_whole_says_what_it_is_of() -> None:
    told_of = about(LEAK)
    assert (told_of["verdict"], told_of["model"]) == ("contaminated", "symbolic")
    assert told_of["events"] == len(LEAK)


def test_no_prompt_goes_into_it() -> None:
    text = written(LEAK)
    assert "prompt_tokens" in text
    for envelope in LEAK:
        if isinstance(envelope.event, RequestAdded):
            assert str(list(envelope.event.prompt_tokens[:4]))[1:-1].replace(" ", "") not in text


class Endless:
    """A long trace that is never in memory at once."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def envelopes(self, start_seq: int = 0, stop_seq: int | None = None) -> Iterator[Envelope]:
        del start_seq, stop_seq
        yield Envelope(0, 0, 0, 0, header())
        yield Envelope(1, 1, 0, 0, added())
        for n in range(self._steps):
            seq, step = 2 + 3 * n, n + 1
            yield Envelope(seq, step, seq * 1000, 0, scheduled("a", "decode", n))
            yield Envelope(seq + 1, step, seq * 1000 + 1, 0, StepDispatched())
            yield Envelope(seq + 2, step, seq * 1000 + 2, 0, StepCompleted())


class Nowhere(io.StringIO):
    """Counts what is written, and now and then how many events are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.alive: list[int] = []

    def write(self, text: str) -> int:
        self.writes += 1
        if self.writes % 4_000 == 0:
            self.alive.append(sum(type(thing) is Envelope for thing in gc.get_objects()))
        return len(text)


def test_of_a_long_trace_no_event_is_kept() -> None:
    source: Any = Endless(1_500)
    out = Nowhere()
    kept = sum(type(thing) is Envelope for thing in gc.get_objects())
    write_perfetto(source, out)
    assert len(out.alive) >= 3
    assert max(out.alive) - kept < 50
