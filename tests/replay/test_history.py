"""The life of a block, of a request, and who read a block."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Row, Trace
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockCopied,
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    RequestPreempted,
    SlotsWritten,
    StepCompleted,
    StepDispatched,
)
from kvrewind.replay.history import (
    allocations_of_block,
    life_of_block,
    life_of_request,
    readers_of,
)
from kvrewind.replay.source import EnvelopeList
from kvrewind.replay.timeline import Timeline
from recorded import recorded

FAULTS = ("free-while-shared", "table-keeps-freed", "key-length-only", "mask-batch-index")


@pytest.mark.parametrize("fault", FAULTS)
def test_generations_are_those_of_the_state(fault: str) -> None:
    events = recorded(fault)
    moments = Timeline(events)
    for block in range(20):
        life = life_of_block(EnvelopeList(events), block)
        for entry in life:
            state = moments.state_at(entry.seq)
            assert entry.generation == state.pool().block(block).generation
        allocations = sum(
            isinstance(e.event, BlockAllocated) and e.event.block == block for e in events
        )
        assert (life[-1].generation if life else 0) == allocations


@pytest.mark.parametrize("fault", FAULTS)
def test_the_life_of_a_block_has_every_event_that_names_it(fault: str) -> None:
    events = recorded(fault)
    for block in (0, 1, 19):
        naming = [e.seq for e in events if getattr(e.event, "block", None) == block]
        life = life_of_block(EnvelopeList(events), block)
        assert [e.seq for e in life if e.kind != "SlotsWritten"] == naming
        assert [e.seq for e in allocations_of_block(EnvelopeList(events), block)] == naming
        wrote = [
            (e.seq, name)
            for e in events
            if isinstance(e.event, SlotsWritten)
            for name in dict.fromkeys(
                name
                for name, slot in zip(e.event.requests, e.event.slots, strict=True)
                if slot // 16 == block
            )
        ]
        assert [(e.seq, e.request) for e in life if e.kind == "SlotsWritten"] == wrote
        assert [e.seq for e in life] == sorted(e.seq for e in life)


def test_a_life_can_end_at_a_seq() -> None:
    source = EnvelopeList(recorded("free-while-shared"))
    whole = life_of_block(source, 1)
    until = whole[5].seq
    assert life_of_block(source, 1, stop_seq=until) == whole[:5]


def test_a_life_is_told_in_words() -> None:
    trace = Trace(block_size=4)
    trace.next_step()
    trace.add("A", range(5))
    trace.add("B", range(5))
    trace.allocate("A", 0, 3)
    trace.allocate("A", 1, 4)
    trace.step(("A", 0, 5))
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.share("B", 0, 3, "k0")
    trace.release("A", 0)
    trace.release("B", 0)
    trace.unregister(3)
    trace.allocate("B", 0, 3)
    trace.step(("B", 0, 1))
    life = life_of_block(EnvelopeList(trace.envelopes()), 3)
    assert [(e.generation, e.text) for e in life] == [
        (1, "allocated to A at index 0"),
        (1, "A wrote 4 slots, positions 0..3 (prefill)"),
        (1, "registered by A under key k0"),
        (1, "shared with B at index 0 under key k0, 2 holders"),
        (1, "released by A at index 0, 1 holder left"),
        (1, "released by B at index 0, 0 holders left"),
        (1, "freed, and kept in the prefix index"),
        (1, "key k0 left the prefix index (evicted)"),
        (2, "allocated to B at index 0"),
        (2, "B wrote 1 slot, position 0 (prefill)"),
    ]
    assert [e.position for e in life[:2]] == ["1:3", "1:8"]


def test_a_copy_is_in_the_life_of_both_blocks_and_groups_are_kept_apart() -> None:
    trace = Trace(groups=2)
    trace.add("A", range(4))
    trace.allocate("A", 0, 3)
    trace.allocate("A", 0, 3, group=1)
    trace.allocate("A", 1, 5)
    copied = trace.emit(BlockCopied(source=3, destination=5, slots=2))
    source = EnvelopeList(trace.envelopes())
    assert [e.seq for e in life_of_block(source, 3)] == [2, copied]
    assert [e.seq for e in life_of_block(source, 5)] == [4, copied]
    assert [e.seq for e in life_of_block(source, 3, group=1)] == [3]


def test_the_life_of_a_request_tells_preemption_and_its_second_prefill() -> None:
    events = recorded()
    preempted = next(e.event for e in events if isinstance(e.event, RequestPreempted))
    added = next(
        e.event
        for e in events
        if isinstance(e.event, RequestAdded) and e.event.request == preempted.request
    )
    texts = [e.text for e in life_of_request(EnvelopeList(events), preempted.request)]
    assert texts[0] == f"added with {len(added.prompt_tokens)} prompt tokens"
    at = texts.index(f"preempted: {preempted.reason}")
    assert any(text.startswith("prefill of") for text in texts[:at])
    assert any(text.startswith("prefill of") for text in texts[at:])
    assert texts[at + 1].startswith("block ") and "released by" in texts[at + 1]
    assert any(text.startswith("finished (") for text in texts[at:])


def test_runs_of_decode_steps_are_one_entry() -> None:
    trace = Trace(block_size=4)
    trace.add("A", range(5))
    trace.allocate("A", 0, 3)
    trace.allocate("A", 1, 4)
    for computed, count in ((0, 2), (2, 1), (3, 1), (4, 1)):
        trace.next_step()
        trace.step(("A", computed, count))
    trace.allocate("A", 2, 5)
    life = life_of_request(EnvelopeList(trace.envelopes()), "A")
    assert [(e.step, e.text) for e in life[-3:]] == [
        (1, "prefill of 2 tokens from position 0"),
        (2, "decoded in steps 2..4"),
        (4, "block 5 allocated to A at index 2"),
    ]


def test_rows_whose_table_lists_a_block_read_it() -> None:
    events = recorded("key-length-only")
    listing = [
        (e.seq, row)
        for e in events
        if isinstance(e.event, InputsBuilt)
        for row, table in enumerate(e.event.block_tables)
        if 2 in table
    ]
    readers = readers_of(EnvelopeList(events), 2)
    assert [(r.seq, r.row) for r in readers] == listing
    assert all(r.lists_block and {s // 16 for s in r.slots} == {2} for r in readers)
    assert {r.request for r in readers} >= {"r0", "r1"}


def test_rows_that_only_a_mask_shows_a_block_read_it_too() -> None:
    def strangers(*faults: str) -> list[tuple[int, int]]:
        source = EnvelopeList(recorded(*faults))
        readers = [reader for block in range(20) for reader in readers_of(source, block)]
        assert readers
        return [(r.seq, r.row) for r in readers if not r.lists_block]

    assert strangers("mask-batch-index")
    assert not strangers()


def dense(*rows: str) -> bytes:
    return b"".join(int(row.ljust(8, "0"), 2).to_bytes(1, "big") for row in rows)


@pytest.mark.parametrize(
    ("keys", "allowed", "more", "seen"),
    [
        ("per_row", dense("1100"), {}, {"B": (12, 13)}),
        ("per_row", dense("0000"), {}, {}),
        ("per_row", dense("0000"), {"meaning": "additive"}, {"B": (12, 13, 14, 15)}),
        ("per_row", dense("0100"), {"meaning": "additive", "dtype": "float32"}, {"B": (13,)}),
        (
            "per_row",
            dense("0100"),
            {"meaning": "additive", "dtype": "float32", "fill": -5.0},
            {"B": (12, 13, 14, 15)},
        ),
    ],
)
def test_a_dense_mask_says_which_slots_are_seen(
    keys: str, allowed: bytes, more: dict[str, str], seen: dict[str, tuple[int, ...]]
) -> None:
    trace = one_row()
    given = {"meaning": "bool_keep", "dtype": "bool", "applied": "before_softmax"} | more
    mask = MaskBuilt(
        form="dense", requests=("B",), query_lens=(1,), allowed=allowed, keys=keys, **given
    )  # type: ignore[arg-type]
    dispatch(trace, mask)
    readers = readers_of(EnvelopeList(trace.envelopes()), 3)
    assert {r.request: r.slots for r in readers} == seen


@pytest.mark.parametrize(
    ("keys", "rows", "seen"),
    [
        # pool: a column per slot; A holds block 0, B block 1
        ("pool", ("1000 0000", "1100 0000", "0010 1000"), {"A": (0, 1), "B": (2, 4)}),
        # concatenated: A's two keys, then B's one
        ("concatenated", ("100", "110", "011"), {"A": (0, 1), "B": (1, 4)}),
        ("per_row", ("01", "01", "10"), {"A": (1,), "B": (4,)}),
    ],
)
def test_each_row_has_its_own_part_of_a_dense_mask(
    keys: str, rows: tuple[str, ...], seen: dict[str, tuple[int, ...]]
) -> None:
    trace = Trace(num_blocks=2, block_size=4)
    trace.next_step()
    for index, name in enumerate(("A", "B")):
        trace.add(name, range(4))
        trace.allocate(name, 0, index)
    trace.build(Row("A", 0, 2), Row("B", 0, 1))
    given: dict[str, Any] = {"keys": keys, "allowed": dense(*(r.replace(" ", "") for r in rows))}
    mask = MaskBuilt(
        form="dense", requests=("A", "B"), query_lens=(2, 1), meaning="bool_keep", dtype="bool",
        applied="before_softmax", **given,
    )  # fmt: skip
    dispatch(trace, mask)
    source = EnvelopeList(trace.envelopes())
    found: dict[str | None, tuple[int, ...]] = {}
    for block in (0, 1):
        for reader in readers_of(source, block):
            found[reader.request] = (*found.get(reader.request, ()), *reader.slots)
    assert found == seen


def test_a_window_hides_what_lies_before_it() -> None:
    trace = one_row()
    mask = MaskBuilt(
        form="lengths", requests=("B",), query_lens=(1,), meaning="bool_keep", dtype="bool",
        applied="before_softmax", window=2,
    )  # fmt: skip
    dispatch(trace, mask)
    (reader,) = readers_of(EnvelopeList(trace.envelopes()), 3)
    assert reader.slots == (14, 15)


def one_row() -> Trace:
    trace = Trace(block_size=4)
    trace.next_step()
    trace.add("B", range(4))
    trace.allocate("B", 0, 3)
    row = ("B", 3, 1)
    trace.schedule(Row(*row))
    trace.build(Row(*row))
    return trace


def dispatch(trace: Trace, mask: Event) -> None:
    trace.emit(mask)
    trace.emit(StepDispatched())
    trace.emit(StepCompleted())
