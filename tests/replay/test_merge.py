"""Several ranks in one trace: what each did, said and broke stays as it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kvrewind.recorder.events import (
    Envelope,
    RequestAdded,
    RunEnded,
    RunStarted,
    SpanDropped,
)
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.memory_account import MemoryAccount
from kvrewind.replay.merge import NotMergeable, merge
from kvrewind.replay.recording import NotReexecutable, Recording
from kvrewind.replay.reducer import apply, fold
from kvrewind.replay.report import render
from kvrewind.replay.state import State
from kvrewind.replay.timeline import Timeline
from mixed import mixed
from recorded import recorded
from ringed import cuts, plain, ringed
from sqlalchemy import create_engine, text


def write(path: Path, envelopes: Sequence[Envelope]) -> Path:
    with TraceWriter(path) as writer:
        writer.write_envelopes(envelopes)
    assert writer.failure is None
    return path


def merged(tmp_path: Path, *runs: Sequence[Envelope]) -> list[Envelope]:
    """The events of a merged trace, written and read."""
    readers = [TraceReader(write(tmp_path / f"{i}.kvtrace", run)) for i, run in enumerate(runs)]
    write(tmp_path / "merged.kvtrace", list(merge(readers).envelopes()))
    for reader in readers:
        reader.close()
    with TraceReader(tmp_path / "merged.kvtrace") as trace:
        assert trace.verify_chain() is None
        return list(trace.envelopes())


def of_rank(envelopes: Sequence[Envelope], rank: int) -> list[Envelope]:
    return [envelope for envelope in envelopes if envelope.rank == rank]


def started(envelopes: Sequence[Envelope], wall_clock: str) -> list[Envelope]:
    """The run as it would be, had it begun then."""
    return [
        e._replace(event=replace(e.event, wall_clock=wall_clock))
        if isinstance(e.event, RunStarted)
        else e
        for e in envelopes
    ]


def told(envelopes: Sequence[Envelope]) -> list[tuple[object, ...]]:
    """The findings, by the place in their own run of what they name."""
    places = {e.seq: index for index, e in enumerate(envelopes)}
    return [
        (f.check, f.fault_class, f.root, places[f.seq], f.position.split(":")[0], f.block, f.slot,
         None if f.culprit_seq is None else places[f.culprit_seq])
        for f in check(envelopes).findings
    ]  # fmt: skip


def told_of_rank(envelopes: Sequence[Envelope], rank: int) -> list[tuple[object, ...]]:
    places = {e.seq: index for index, e in enumerate(of_rank(envelopes, rank))}
    return [
        (f.check, f.fault_class, f.root, places[f.seq], f.position.split(":")[0], f.block, f.slot,
         None if f.culprit_seq is None else places[f.culprit_seq])
        for f in check(envelopes).findings if f.seq in places
    ]  # fmt: skip


def test_each_rank_has_its_own_findings_at_their_positions(tmp_path: Path) -> None:
    leak, late, sound = recorded("key-length-only"), recorded("free-while-shared"), recorded()
    both = merged(tmp_path, leak, sound, late)
    assert told_of_rank(both, 0) == told(leak) != []
    assert told_of_rank(both, 1) == []
    assert told_of_rank(both, 2) == told(late) != []
    report = check(both)
    assert report.verdict == "contaminated"
    assert {f.explanation.split(":")[0] for f in report.findings} == {"rank 0", "rank 2"}
    assert report.missing == ()


def test_a_sound_twin_stays_clean(tmp_path: Path) -> None:
    report = check(merged(tmp_path, recorded(), recorded(), recorded()))
    assert (report.verdict, report.findings, report.missing) == ("clean", (), ())


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_any_two_runs_fold_and_check_as_each_does_alone(seed: int, tmp_path: Path) -> None:
    # their models may differ, which a merge refuses: said of one header
    one, other = mixed(seed), mixed(seed + 100)
    header = next(e.event for e in one if isinstance(e.event, RunStarted))
    same = {n: getattr(header, n) for n in ("model", "model_digest", "tokenizer_digest")}
    other = tuple(
        e._replace(event=replace(e.event, **same, block_size=e.event.block_size))
        if isinstance(e.event, RunStarted)
        else e
        for e in other
    )
    if next(e.event for e in other if isinstance(e.event, RunStarted)).block_size != (
        header.block_size
    ):
        other = one
    both = merged(tmp_path, one, other)
    assert check(both).verdict == check(one).verdict == "clean"
    state = fold(both)
    for rank, run in ((0, one), (1, other)):
        if rank != state.rank:
            state.turn_to(rank)
        alone = fold(run)
        assert state.header is not None and alone.header is not None
        blocks = [state.summary()["blocks"], alone.summary()["blocks"]]
        assert strip(blocks[0]) == strip(blocks[1]) != ()
        assert state.summary()["free"] == alone.summary()["free"]
        assert len(state.log) == len(alone.log) > 0


def strip(blocks: tuple[tuple[object, ...], ...]) -> tuple[tuple[object, ...], ...]:
    """Without the names of holders, which a merge may change."""
    return tuple((generation, count, len(who), key) for generation, count, who, key in blocks)  # type: ignore[arg-type]


def test_a_state_is_that_of_the_last_events_rank(tmp_path: Path) -> None:
    one, other = recorded(), recorded("key-length-only")
    both = merged(tmp_path, one, other)
    timeline = Timeline(both)
    at = [0, 0]
    alone = [State(), State()]
    for envelope in both:
        rank = envelope.rank
        apply(alone[rank], (one, other)[rank][at[rank]])
        at[rank] += 1
        if envelope.seq % 97 == 0 or envelope.seq > both[-1].seq - 3:
            shown = timeline.state_at(envelope.seq)
            assert shown.rank == rank
            assert shown.summary()["free"] == alone[rank].summary()["free"]
            assert shown.step == alone[rank].step


def test_events_stand_in_the_order_of_wall_time_and_each_rank_keeps_its_own(tmp_path: Path) -> None:
    begun = "2026-05-01T10:00:00.000+00:00"
    later = "2026-05-01T12:00:00.002+02:00"  # two milliseconds later, elsewhere
    runs = [
        [e._replace(t_ns=10_000 * i) for i, e in enumerate(started(recorded(), begun))],
        [e._replace(t_ns=5_000 * i) for i, e in enumerate(started(recorded(), later))],
    ]
    both = merged(tmp_path, *runs)
    assert [e.seq for e in both] == list(range(len(both)))
    assert [e.t_ns for e in both] == sorted(e.t_ns for e in both)
    assert [e.event for e in of_rank(both, 0)] == [e.event for e in runs[0]]
    assert [e.t_ns for e in of_rank(both, 1)] == [e.t_ns + 2_000_000 for e in runs[1]]
    ranks = [e.rank for e in both]
    assert ranks != sorted(ranks)


def test_a_clock_that_goes_back_changes_no_ranks_own_order(tmp_path: Path) -> None:
    run = recorded()
    back = [e._replace(t_ns=max(0, 10**9 - e.t_ns)) for e in run]
    both = merged(tmp_path, run, back)
    assert [e.step for e in of_rank(both, 1)] == [e.step for e in run]


def test_a_request_that_all_ranks_were_given_keeps_its_name(tmp_path: Path) -> None:
    both = merged(tmp_path, recorded(), recorded())
    assert [e.event for e in of_rank(both, 0)] == [e.event for e in of_rank(both, 1)]


def test_requests_that_only_share_a_name_are_told_apart_everywhere(tmp_path: Path) -> None:
    run = recorded("key-length-only")
    other = [
        e._replace(event=replace(e.event, tenant="elsewhere"))
        if isinstance(e.event, RequestAdded) and e.event.request == "r1"
        else e
        for e in run
    ]
    both = merged(tmp_path, run, other)
    assert [e.event for e in of_rank(both, 0)] == [e.event for e in run]
    theirs = of_rank(both, 1)
    named = {e.event.request for e in theirs if isinstance(e.event, RequestAdded)}
    assert "r1" not in named and {"r1@1", "r0", "r2"} <= named
    assert "r1@1" in {f.victim for f in check(both).findings}
    assert not any("'r1'" in repr(e.event) or ":r1:" in repr(e.event) for e in theirs)


def test_a_name_that_is_taken_is_not_given_again(tmp_path: Path) -> None:
    run = recorded()
    taken = [
        e._replace(event=replace(e.event, tenant="elsewhere", external_id=f"{e.event.request}@1"))
        if isinstance(e.event, RequestAdded)
        else e
        for e in run
    ]
    extra = RequestAdded(request="r1@1", prompt_tokens=(1,), max_new_tokens=1)
    both = merged(tmp_path, [*run[:-1], run[-1]._replace(event=extra)], taken)
    assert {"r1@1", "r1@1#2"} <= {
        e.event.request for e in both if isinstance(e.event, RequestAdded)
    }


def test_dropped_events_keep_their_numbers(tmp_path: Path) -> None:
    run = recorded()
    cut = next(i for i, e in enumerate(run) if e.step == 9)
    end = next(i for i, e in enumerate(run) if e.step == 11)
    lost = end - cut - 1
    mark = SpanDropped(first_seq=run[cut].seq, count=lost, why="the disk was slow")
    holed = [*run[:cut], run[end - 1]._replace(event=mark), *run[end:]]
    both = merged(tmp_path, run, holed)
    found = next(e for e in both if isinstance(e.event, SpanDropped))
    assert isinstance(found.event, SpanDropped) and found.rank == 1
    assert found.event.first_seq + found.event.count == found.seq
    assert found.event.count == lost
    assert not {e.seq for e in both} & set(range(found.event.first_seq, found.seq))
    report = check(both)
    assert [m for m in report.missing if not m.startswith("rank 1: ")] == []
    assert any(f"events {found.event.first_seq} to {found.seq - 1}" in m for m in report.missing)


def test_a_ring_goes_on_from_the_state_that_it_begins_with(tmp_path: Path) -> None:
    run = recorded("key-length-only")
    cut = list(cuts(run))[3]
    ring = ringed(run, cut)
    others = [
        e._replace(event=replace(e.event, tenant="elsewhere"))
        if isinstance(e.event, RequestAdded)
        else e
        for e in recorded()
    ]
    both = merged(tmp_path, others, ring)
    assert told_of_rank(both, 1) == told(ring) != []
    mark = next(e for e in both if isinstance(e.event, SpanDropped))
    state, alone = State(), fold(e for e in ring if e.seq <= cut - 1)
    for envelope in both:
        apply(state, envelope)
        if envelope is mark:
            break
    assert state.rank == 1 and state.is_restored
    assert set(state.requests) == {f"{name}@1" for name in alone.requests}
    assert len(state.log) == len(alone.log) > 0
    kept = plain(state)["pools"][0]["slots"]
    assert [w.seq for w in kept.values()] == [
        w.seq + mark.seq - next(e.seq for e in ring if isinstance(e.event, SpanDropped))
        for w in plain(alone)["pools"][0]["slots"].values()
    ]


def test_a_run_without_its_end_is_merged_and_the_whole_says_so(tmp_path: Path) -> None:
    run = recorded()
    half = run[: len(run) // 2]
    readers = [
        TraceReader(write(tmp_path / "whole.kvtrace", run)),
        TraceReader(write(tmp_path / "half.kvtrace", half)),
    ]
    both = merge(readers)
    assert both.inputs[0].remarks == ()
    assert any("no end record" in remark for remark in both.inputs[1].remarks)
    write(tmp_path / "merged.kvtrace", list(both.envelopes()))
    with TraceReader(tmp_path / "merged.kvtrace") as trace:
        assert not trace.complete
        report = check(trace.envelopes(), problems=trace.problems)
    assert report.verdict == "incomplete"
    assert len(of_rank(list(both.envelopes()), 1)) == len(half)


def test_a_whole_merge_is_complete(tmp_path: Path) -> None:
    merged(tmp_path, recorded(), recorded())
    with TraceReader(tmp_path / "merged.kvtrace") as trace:
        assert trace.complete and trace.problems == []


def test_merged_traces_can_be_merged_again(tmp_path: Path) -> None:
    run = recorded("key-length-only")
    both = merged(tmp_path, recorded(), run)
    (tmp_path / "again").mkdir()
    three = merged(tmp_path / "again", both, run)
    assert sorted({e.rank for e in three}) == [0, 1, 2]
    assert told_of_rank(three, 1) == told_of_rank(three, 2) == told(run)


def test_what_was_changed_afterwards_is_not_hidden_by_new_digests(tmp_path: Path) -> None:
    path = write(tmp_path / "changed.kvtrace", recorded())
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(
            text("update events set block = block + 1 where kind = 'BlockAllocated'")
        )
    engine.dispose()
    sound = write(tmp_path / "sound.kvtrace", recorded())
    with (
        TraceReader(path) as changed,
        TraceReader(sound) as other,
        pytest.raises(NotMergeable, match="digest of step"),
    ):
        merge([other, changed])


@pytest.mark.parametrize(("field", "value"), [("block_size", 8), ("model", "another")])
def test_runs_of_different_services_are_refused(field: str, value: object, tmp_path: Path) -> None:
    run = recorded()
    other = [
        e._replace(event=replace(e.event, **{field: value}))  # type: ignore[arg-type]
        if isinstance(e.event, RunStarted)
        else e
        for e in run
    ]
    with pytest.raises(NotMergeable, match=f"has {field} {value}"):
        merged(tmp_path, run, other)


def test_a_merged_trace_is_not_run_again(tmp_path: Path) -> None:
    both = merged(tmp_path, recorded(), recorded())
    with pytest.raises(NotReexecutable, match="2 ranks"):
        Recording.of(both)


def test_the_memory_account_is_of_one_cache_and_says_which(tmp_path: Path) -> None:
    account, alone = MemoryAccount(), MemoryAccount()
    for envelope in merged(tmp_path, recorded(), recorded()):
        account.see(envelope)
    for envelope in recorded():
        alone.see(envelope)
    memory = account.report()
    assert "rank 1" in memory.missing[-1]
    assert replace(memory, missing=memory.missing[:-1]) == alone.report()


def test_a_run_that_ended_in_one_rank_only_is_not_over(tmp_path: Path) -> None:
    run = recorded()
    both = [*run, *(e._replace(seq=e.seq + len(run), rank=1) for e in run[:-1])]
    assert isinstance(run[-1].event, RunEnded)
    with TraceReader(write(tmp_path / "both.kvtrace", both)) as trace:
        assert not trace.complete


def test_the_report_tells_an_incident_from_its_own_ranks_blocks(tmp_path: Path) -> None:
    leak = recorded("key-length-only")
    both = merged(tmp_path, recorded(), leak)
    alone = render(check(leak), list(leak)).plain.splitlines()
    told = render(check(both), both).plain.splitlines()
    for label in ("ALLOCATED", "SHARED", "ALLOWED", "READ"):
        lines = [[line for line in report if label in line] for report in (told, alone)]
        assert [re.sub(r"[0-9]+", "#", line) for line in lines[0]] == [
            re.sub(r"[0-9]+", "#", line) for line in lines[1]
        ]
    strips = [[line for line in report if " A r" in line] for report in (told, alone)]
    assert strips[0] == strips[1] != []
