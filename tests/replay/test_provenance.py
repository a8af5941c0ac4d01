"""Who wrote, read, shared, released and freed what: from the log of runs with planted faults."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Trace
from kvrewind.recorder.errors import NoSuchPosition
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockReleased,
    BlockShared,
    Envelope,
    InputsBuilt,
    MaskBuilt,
    RequestPreempted,
    SlotsWritten,
)
from kvrewind.replay.findings import Finding
from kvrewind.replay.provenance import chain, last_writer
from kvrewind.replay.reducer import fold
from kvrewind.replay.timeline import Timeline
from recorded import recorded


def first(events: tuple[Envelope, ...], kind: type, **values: Any) -> Envelope:
    return next(
        e
        for e in events
        if isinstance(e.event, kind)
        and all(getattr(e.event, name) == value for name, value in values.items())
    )


def dispatch_of(events: tuple[Envelope, ...], step: int) -> Envelope:
    return next(e for e in events if e.step == step and e.kind == "StepDispatched")


def finding(at: Envelope, **values: Any) -> Finding:
    given: dict[str, Any] = {
        "check": "foreign-read",
        "fault_class": None,
        "root": True,
        "seq": at.seq,
        "position": at.position,
        "culprit_seq": None,
        "explanation": "read what another wrote",
    }
    return Finding(**given | values)


def foreign_of_r1() -> tuple[Timeline, Finding, Envelope]:
    """r1 takes r0's third block for its own, since the length alone was compared."""
    events = recorded("key-length-only")
    shared = first(events, BlockShared, request="r1", index=2)
    where = {"culprit_seq": shared.seq, "block": shared.event.block}  # pyright: ignore
    found = finding(dispatch_of(events, shared.step), victim="r1", source="r0", **where)
    return Timeline(events), found, shared


def test_a_chain_leads_from_the_reader_to_the_decision() -> None:
    moments, found, shared = foreign_of_r1()
    links = chain(moments, found)
    assert links.read is not None and links.culprit is not None
    assert (links.read.request, links.read.step) == ("r1", shared.step)
    assert links.culprit.seq == shared.seq
    assert links.culprit.kind == "BlockShared"
    assert links.culprit.decision == "share:r1:2:0"
    assert {written.request for written in links.written} == {"r0"}
    assert links.allocated is not None and links.allocated.request == "r0"
    assert links.held is not None and links.held.seq == shared.seq
    assert links.freed == () and links.released == ()


def test_only_slots_after_the_first_token_that_differs_are_foreign() -> None:
    moments, found, _ = foreign_of_r1()
    links = chain(moments, found)
    assert links.read is not None
    requests = moments.state_at(found.seq).requests
    tokens = zip(requests["r0"].tokens, requests["r1"].tokens, strict=False)
    differs = next(p for p, (a, b) in enumerate(tokens) if a != b)
    block_end = 3 * 16
    assert [w.position for w in links.written[0].writes] == list(range(differs, block_end))
    assert [w.token for w in links.written[0].writes] == list(
        requests["r0"].tokens[differs:block_end]
    )
    assert [moments.state_at(found.seq).writer(0, s) for s in links.read.slots] == list(
        links.written[0].writes
    )


def test_a_kept_table_entry_shows_the_release_and_who_got_the_block() -> None:
    events = recorded("table-keeps-freed")
    preempted = first(events, RequestPreempted)
    victim = preempted.event.request  # pyright: ignore
    released = next(
        e for e in events if e.seq > preempted.seq and isinstance(e.event, BlockReleased)
    )
    block = released.event.block  # pyright: ignore
    after = events[released.seq :]
    freed = first(after, BlockFreed, block=block)
    moments = Timeline(events)
    chains = (
        chain(moments, finding(at, culprit_seq=released.seq, block=block, victim=victim))
        for at in (dispatch_of(events, e.step) for e in after if _lists(e, victim, block))
    )
    links = next(links for links in chains if links.read)
    assert links.read is not None and links.read.request == victim
    assert links.released[0].seq == released.seq
    assert links.freed[0].seq == freed.seq
    given = [e for e in after if _is_allocation(e, block) and e.seq < links.read.seq][-1]
    assert links.allocated is not None and links.allocated.seq == given.seq
    generation = fold(events[: given.seq + 1]).pool().block(block).generation
    assert links.allocated.generation == generation > 1
    assert links.held is not None and links.held.seq < released.seq
    assert {w.request for w in links.written} == {given.event.request}  # pyright: ignore


def _lists(envelope: Envelope, request: str, block: int) -> bool:
    event = envelope.event
    if not isinstance(event, InputsBuilt) or request not in event.requests:
        return False
    return block in event.block_tables[event.requests.index(request)]


def _is_allocation(envelope: Envelope, block: int) -> bool:
    return isinstance(envelope.event, BlockAllocated) and envelope.event.block == block


def test_a_wrong_mask_shows_slots_that_the_table_does_not_list() -> None:
    events = recorded("mask-batch-index")
    mask = next(e for e in events if e.step == 3 and isinstance(e.event, MaskBuilt))
    found = finding(mask, culprit_seq=mask.seq, victim="r0", source="r1", row=0)
    links = chain(Timeline(events), found)
    assert links.read is not None and links.read.request == "r0"
    build = next(e.event for e in events if e.step == 3 and isinstance(e.event, InputsBuilt))
    assert isinstance(build, InputsBuilt)
    assert {slot // 16 for slot in links.read.slots} - set(build.block_tables[0])
    assert {w.request for w in links.written} == {"r1"}
    assert links.held is None


def test_a_clean_run_reads_nothing_foreign() -> None:
    events = recorded()
    moments = Timeline(events)
    for envelope in events:
        if isinstance(envelope.event, InputsBuilt):
            for row, request in enumerate(envelope.event.requests):
                at = dispatch_of(events, envelope.step)
                assert chain(moments, finding(at, row=row, victim=request)).read is None


def test_the_last_writer_is_the_last_event_that_wrote_the_slot() -> None:
    events = recorded("table-keeps-freed")
    moments = Timeline(events)
    for slot in (0, 37, 64, 304, 305):
        for seq in (10, 60, 230, 300, events[-1].seq):
            found = last_writer(moments, slot, seq)
            wrote = [
                e.seq
                for e in events
                if isinstance(e.event, SlotsWritten) and e.seq <= seq and slot in e.event.slots
            ]
            assert (found.seq if found else None) == (wrote[-1] if wrote else None)
    with pytest.raises(NoSuchPosition):
        last_writer(moments, 0, len(events))


def test_a_finding_outside_any_step_still_names_its_culprit() -> None:
    events = recorded("free-while-shared")
    freed = first(events, BlockFreed)
    links = chain(Timeline(events), finding(freed, culprit_seq=freed.seq, block=1))
    assert links.culprit is not None and links.culprit.seq == freed.seq


def shared_between(one: str | None, other: str | None) -> Timeline:
    """B takes A's block, with equal tokens, and reads it."""
    trace = Trace(num_blocks=8, block_size=4)
    trace.next_step()
    trace.add("A", range(5), tenant=one)
    trace.allocate("A", 0, 3)
    trace.allocate("A", 1, 4)
    trace.step(("A", 0, 5))
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.add("B", range(5), tenant=other)
    trace.share("B", 0, 3, "k0")
    trace.allocate("B", 1, 5)
    trace.step(("B", 4, 1))
    return Timeline(trace.envelopes())


def read_by_b(moments: Timeline) -> tuple[int, ...]:
    at = [e for e in moments.source.envelopes() if e.kind == "StepDispatched"][-1]
    read = chain(moments, finding(at, victim="B", source="A")).read
    return read.slots if read else ()


def test_another_tenants_equal_tokens_are_foreign_all_the_same() -> None:
    assert read_by_b(shared_between("acme", "acme")) == ()
    assert read_by_b(shared_between("acme", "umbrella")) == (12, 13, 14, 15)


def test_slots_that_the_step_itself_writes_belong_to_its_own_rows() -> None:
    """Keys are written before attention reads, so an earlier owner's are gone."""
    trace = Trace(num_blocks=8, block_size=4)
    trace.next_step()
    trace.add("A", range(4))
    trace.allocate("A", 0, 3)
    trace.step(("A", 0, 4))
    trace.finish("A")
    trace.next_step()
    trace.add("B", range(10, 13))
    trace.allocate("B", 0, 3)
    trace.step(("B", 0, 3))
    assert read_by_b(Timeline(trace.envelopes())) == ()
