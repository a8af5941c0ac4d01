"""Slots, rows, masks and reads: each rule catches its fault and blames the right event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Row, Trace, at, pad
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockReleased,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    RequestForked,
    SlotsWritten,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TokensSampled,
)
from kvrewind.replay.findings import Finding
from scenes import assert_clean, forked, judged, overlapped, root_of, shared_prefix, two_decoding


def named(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.check, finding.fault_class, finding.culprit_seq


def leaks(report) -> list[Finding]:
    return [f for f in report.findings if f.check == "foreign-read"]


# address


def test_a_wrong_slot_in_the_mapping_blames_the_build():
    trace = two_decoding()
    build = trace.find(InputsBuilt, 1)
    assert trace.events[build][1].slot_mapping == (5, 13)
    trace.edit(build, slot_mapping=(9, 13))
    trace.edit(trace.find(SlotsWritten, 1), slots=(9, 13))
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("address", "F08", build)
    assert (root.slot, root.row, root.expected, root.actual) == (9, 0, 5, 9)
    assert root.decision == "slots:A:6:0"
    (leak,) = [f for f in leaks(report) if f.victim == "B"]
    assert (leak.source, leak.slot, leak.fault_class, leak.culprit_seq) == ("A", 9, "F08", build)
    assert report.verdict == "contaminated"


def test_a_write_that_does_not_follow_the_mapping_blames_the_write():
    trace = two_decoding()
    written = trace.edit(trace.find(SlotsWritten, 1), slots=(6, 13))
    root = root_of(judged(trace))
    assert named(root) == ("address", "F08", written)
    assert (root.expected, root.actual) == (5, 6)


def test_a_slot_of_minus_one_writes_nowhere_and_is_no_fault():
    trace = shared_prefix()
    build = trace.find(InputsBuilt)
    slots = trace.events[build][1].slot_mapping
    trace.edit(build, slot_mapping=at(slots, 6, -1))
    findings = judged(trace).findings
    assert all(finding.check != "address" for finding in findings)


def test_a_slot_that_fits_a_wrong_position_is_left_to_the_position_rule():
    trace = two_decoding()
    build = trace.find(InputsBuilt, 1)
    trace.edit(build, positions=(6, 5), slot_mapping=(6, 13))
    trace.edit(trace.find(SlotsWritten, 1), positions=(6, 5), slots=(6, 13))
    assert all(finding.check != "address" for finding in judged(trace).findings)


# unwritten-read


def test_a_length_inside_the_blocks_held_reads_what_was_not_written():
    trace = two_decoding()
    build = trace.find(InputsBuilt, 1)
    trace.edit(build, seq_lens=(8, 6))
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("unwritten-read", "F13", build)
    assert (root.victim, root.expected, root.actual, root.slot) == ("A", 6, 8, 6)
    assert report.verdict == "violated"


def test_reading_what_an_earlier_owner_left_is_a_leak():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 14))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 4), sample={"A": 90})
    trace.finish("A")
    trace.next_step()
    trace.add("B", range(30, 33))
    trace.allocate("B", 0, 0)
    trace.step(("B", 0, 3), sample={"B": 91})
    trace.finish("B")
    trace.end()
    assert_clean(trace)
    build = trace.edit(trace.find(InputsBuilt, 1), seq_lens=(4,))
    report = judged(trace)
    root, leak = report.findings
    assert named(root) == ("unwritten-read", "F13", build)
    assert (root.source, leak.source, leak.victim, leak.slot) == ("A", "A", "B", 3)
    assert named(leak) == ("foreign-read", "F13", build)
    assert not leak.root
    assert report.verdict == "contaminated"


def test_a_slot_that_no_step_wrote_is_an_unwritten_read():
    trace = two_decoding()
    first = trace.find(InputsBuilt)
    slots = trace.events[first][1].slot_mapping
    trace.edit(first, slot_mapping=at(slots, 4, -1))
    written = trace.find(SlotsWritten)
    event = trace.events[written][1]
    keep = [i for i, slot in enumerate(event.slots) if slot != 4]
    trace.edit(
        written,
        requests=tuple(event.requests[i] for i in keep),
        positions=tuple(event.positions[i] for i in keep),
        tokens=tuple(event.tokens[i] for i in keep),
        slots=tuple(event.slots[i] for i in keep),
    )
    root = root_of(judged(trace))
    assert named(root) == ("unwritten-read", "F13", first)
    assert (root.victim, root.block, root.slot) == ("A", 1, 4)


# row-identity


def test_a_length_of_another_row_is_a_row_fault():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.add("B", range(30, 37))
    for request, blocks in (("A", (0, 1)), ("B", (2, 3))):
        for index, block in enumerate(blocks):
            trace.allocate(request, index, block)
    trace.step(("A", 0, 5), ("B", 0, 7), sample={"A": 90, "B": 91})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    assert_clean(trace)
    build = trace.edit(trace.find(InputsBuilt), seq_lens=(7, 7))
    root = root_of(judged(trace))
    assert named(root) == ("row-identity", "F11", build)
    assert (root.victim, root.source, root.expected, root.actual) == ("A", "B", 5, 7)


def test_a_table_of_another_row_is_a_row_fault_and_leaks():
    trace = two_decoding()
    build = trace.find(InputsBuilt, 1)
    trace.edit(build, block_tables=((2, 3), (2, 3)), slot_mapping=(13, 13))
    report = judged(trace)
    root = report.roots[0]
    assert named(root) == ("row-identity", "F11", build)
    assert (root.row, root.victim, root.source) == (0, "A", "B")
    assert any((f.victim, f.source, f.culprit_seq) == ("A", "B", build) for f in leaks(report))


def test_tokens_of_another_row_are_a_row_fault():
    trace = two_decoding()
    build = trace.edit(trace.find(InputsBuilt, 1), tokens=(91, 91))
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("row-identity", "F11", build)
    assert (root.row, root.expected, root.actual, root.source) == (0, 90, 91, "B")


def test_a_token_given_before_it_was_sampled_is_compared_afterwards():
    trace = overlapped()
    assert_clean(trace)
    build = trace.edit(trace.find(InputsBuilt, 1), tokens=(89,))
    root = root_of(judged(trace))
    assert named(root) == ("row-identity", "F11", build)
    assert (root.expected, root.actual) == (90, 89)


def test_a_token_sampled_from_another_row_contaminates():
    trace = two_decoding()
    sampled = trace.edit(trace.find(TokensSampled, 1), rows=(1, 0))
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("row-identity", "F11", sampled)
    assert (root.victim, root.source, root.row) == ("A", "B", 1)
    assert report.verdict == "contaminated"


def test_counts_that_are_off_by_one_are_a_row_fault():
    trace = two_decoding()
    build = trace.edit(trace.find(InputsBuilt), query_lens=(4, 6))
    assert named(root_of(judged(trace))) == ("row-identity", "F11", build)


def test_rows_in_another_order_than_scheduled_are_legal():
    trace = two_decoding()
    scheduled = trace.find(StepScheduled, 1)
    event = trace.events[scheduled][1]
    trace.edit(
        scheduled,
        requests=event.requests[::-1],
        computed=event.computed[::-1],
        scheduled=event.scheduled[::-1],
        phases=event.phases[::-1],
    )
    assert_clean(trace)


# exclusive-write


def test_a_write_into_a_block_with_two_holders_blames_the_write():
    trace = forked()
    assert_clean(trace)
    allocated = trace.find(BlockAllocated, 2)
    for _ in range(3):
        trace.drop(allocated)
    build = trace.find(InputsBuilt, 1)
    trace.edit(build, block_tables=((0, 1), (0, 1)), slot_mapping=(6, 6))
    written = trace.edit(trace.find(SlotsWritten, 1), slots=(6, 6))
    for which in (3,):
        trace.edit(trace.find(BlockReleased, which), block=1, ref_count=0)
    trace.edit(trace.find(BlockReleased, 0), ref_count=1)
    report = judged(trace)
    assert named(report.roots[0])[:2] in (("exclusive-write", "F19"), ("ref-count", "F06"))
    (root,) = [f for f in report.roots if f.check == "exclusive-write"]
    assert (root.culprit_seq, root.block, root.slot) == (written, 1, 6)


def test_a_copy_that_comes_after_the_read_is_late():
    trace = forked()
    copied = trace.find(BlockCopied)
    event = trace.events[copied]
    trace.drop(copied)
    late = trace.find(StepDispatched, 1) + 1
    trace.events.insert(late, event)
    root = root_of(judged(trace))
    assert named(root) == ("exclusive-write", "F19", late)
    assert (root.victim, root.block) == ("B", 2)


def test_a_copy_that_leaves_slots_out_is_incomplete():
    root = root_of(judged(forked(copied=1)))
    assert (root.check, root.slot) == ("exclusive-write", 9)


def test_a_missing_copy_blames_the_allocation_that_replaced_the_entry():
    trace = forked()
    trace.drop(trace.find(BlockCopied))
    root = root_of(judged(trace))
    assert named(root) == ("exclusive-write", "F19", trace.find(BlockAllocated, 2))


def test_a_copy_of_the_wrong_block_blames_the_copy():
    trace = forked()
    copied = trace.edit(trace.find(BlockCopied), source=0)
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("exclusive-write", "F19", copied)
    assert report.verdict == "contaminated"
    assert {f.culprit_seq for f in leaks(report)} == {copied}


def test_a_copy_of_more_slots_than_the_fork_took_over_is_legal():
    assert_clean(forked(copied=4))


# mask


def dense(trace: Trace, step: int = 1, keys: str = "pool", **more) -> int:
    """Give one step a right dense mask, built from its inputs."""
    build = trace.find(InputsBuilt, step)
    event = trace.events[build][1]
    slots = trace.num_blocks * trace.size
    widths = {"pool": slots, "concatenated": sum(event.seq_lens), "per_row": max(event.seq_lens)}
    width = widths[keys]
    rows: list[list[int]] = []
    for number, (count, length, table) in enumerate(
        zip(event.query_lens, event.seq_lens, event.block_tables, strict=True)
    ):
        base = sum(event.seq_lens[:number])
        for query in range(length - count, length):
            visible = [0] * width
            for position in range(query + 1):
                slot = table[position // trace.size] * trace.size + position % trace.size
                column = {"pool": slot, "concatenated": base + position, "per_row": position}
                visible[column[keys]] = 1
            rows.append(visible)
    given = {
        "form": "dense",
        "requests": event.requests,
        "query_lens": event.query_lens,
        "allowed": pack(rows),
        "keys": keys,
        "meaning": "additive",
        "dtype": "float32",
        "fill": float("-inf"),
        "applied": "before_softmax",
    }
    trace.events.insert(build + 1, (trace.events[build][0], MaskBuilt(**(given | more))))
    return build + 1


def pack(rows: list[list[int]]) -> bytes:
    packed = b""
    for row in rows:
        padded = row + [0] * (-len(row) % 8)
        packed += int("".join(map(str, padded)), 2).to_bytes(len(padded) // 8, "big")
    return packed


def flip(trace: Trace, mask: int, query: int, column: int) -> None:
    event = trace.events[mask][1]
    count = len(event.allowed) // sum(event.query_lens)
    allowed = bytearray(event.allowed)
    allowed[query * count + column // 8] ^= 0x80 >> column % 8
    trace.edit(mask, allowed=bytes(allowed))


@pytest.mark.parametrize("keys", ["pool", "concatenated", "per_row"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_right_mask_is_silent_in_every_layout(keys, step):
    trace = two_decoding()
    dense(trace, step, keys)
    assert_clean(trace)


def test_a_key_of_another_request_in_the_mask_leaks_and_names_the_index():
    trace = two_decoding()
    mask = dense(trace)
    flip(trace, mask, 0, 9)
    report = judged(trace)
    root, leak = report.findings
    assert named(root) == ("mask", "F14", mask)
    assert (root.row, root.query, root.key, root.expected, root.actual) == (0, 0, 9, False, True)
    assert (root.victim, root.decision) == ("A", "mask:A:6:0")
    assert named(leak) == ("foreign-read", "F14", mask)
    assert (leak.victim, leak.source, leak.slot, leak.key) == ("A", "B", 9, 9)
    assert report.verdict == "contaminated"


def test_a_later_token_of_its_own_in_the_mask_violates():
    trace = two_decoding()
    mask = dense(trace, 0, "per_row")
    flip(trace, mask, 2, 4)
    report = judged(trace)
    root = root_of(report)
    assert (named(root), root.query, root.key) == (("mask", "F14", mask), 2, 4)
    assert report.verdict == "violated"


def test_a_hidden_key_of_its_own_violates():
    trace = two_decoding()
    mask = dense(trace, 1, "concatenated")
    flip(trace, mask, 1, 7)
    report = judged(trace)
    root = root_of(report)
    assert (root.row, root.query, root.key, root.actual) == (1, 1, 7, False)
    assert report.verdict == "violated"


def test_a_row_with_the_whole_mask_of_another_row_is_a_row_fault():
    trace = two_decoding()
    mask = dense(trace)
    allowed = trace.events[mask][1].allowed
    half = len(allowed) // 2
    trace.edit(mask, allowed=allowed[half:] + allowed[half:])
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("row-identity", "F11", mask)
    assert (root.row, root.victim, root.source) == (0, "A", "B")
    assert named(leaks(report)[0]) == ("foreign-read", "F11", mask)


def test_a_boolean_mask_that_is_added_shows_every_key():
    trace = two_decoding()
    mask = dense(trace, 1, "concatenated", dtype="bool", fill=None)
    report = judged(trace)
    root = root_of(report)
    assert named(root) == ("mask", "F14", mask)
    assert {(f.victim, f.source) for f in leaks(report)} == {("A", "B"), ("B", "A")}


@pytest.mark.parametrize(
    ("dtype", "fill", "is_weak"),
    [
        ("float32", -1e9, False),
        ("float16", -1e9, False),
        ("float16", -65504.0, False),
        ("float32", -5.0, True),
        ("float8_e4m3fn", -1e9, True),
    ],
)
def test_a_fill_must_leave_hidden_keys_no_weight(dtype, fill, is_weak):
    trace = two_decoding()
    mask = dense(trace, dtype=dtype, fill=fill)
    report = judged(trace)
    assert [named(f) for f in report.roots] == ([("mask", "F14", mask)] if is_weak else [])
    assert (report.verdict == "contaminated") is is_weak


def test_a_mask_after_softmax_alters_and_shows_only_what_it_allows():
    trace = two_decoding()
    mask = dense(trace, applied="after_softmax")
    report = judged(trace)
    assert named(root_of(report)) == ("mask", "F14", mask)
    assert report.verdict == "violated"


def test_a_row_that_sees_nothing_violates_and_with_a_finite_fill_leaks():
    trace = two_decoding()
    mask = dense(trace, fill=-1e9)
    count = len(trace.events[mask][1].allowed) // 2
    trace.edit(mask, allowed=bytes(count) + trace.events[mask][1].allowed[count:])
    report = judged(trace)
    assert named(root_of(report)) == ("mask", "F14", mask)
    assert {(f.victim, f.source) for f in leaks(report)} == {("A", "B")}
    trace.edit(mask, fill=float("-inf"))
    assert judged(trace).verdict == "violated"


def test_the_same_wrong_mask_later_is_a_finding_and_no_root():
    trace = two_decoding()
    second = dense(trace, 1)
    flip(trace, second, 0, 9)
    first = dense(trace, 0)
    flip(trace, first, 0, 9)
    report = judged(trace)
    masks = [f for f in report.findings if f.check == "mask"]
    assert [f.root for f in masks] == [True, False]
    assert masks[0].culprit_seq == first


def test_a_window_hides_what_lies_before_it():
    trace = two_decoding(window=3)
    mask = dense(trace)
    report = judged(trace)
    assert named(root_of(report)) == ("mask", "F14", mask)
    for query, columns in ((0, (0, 1, 2)), (1, (8, 9, 10))):
        for column in columns:
            flip(trace, mask, query, column)
    assert_clean(trace)


def test_a_mask_with_rows_in_another_order_is_the_masks_row_fault():
    trace = two_decoding()
    mask = dense(trace)
    trace.edit(mask, requests=("B", "A"))
    report = judged(trace)
    assert named(root_of(report)) == ("row-identity", "F11", mask)


# foreign-read


def test_a_write_into_a_row_under_way_counts_as_read():
    trace = two_decoding()
    dispatched = trace.find(StepDispatched, 1)
    stray = trace.insert(
        dispatched + 1,
        SlotsWritten(write="decode", requests=("B",), positions=(5,), tokens=(91,), slots=(0,)),
    )
    report = judged(trace)
    (leak,) = [f for f in leaks(report) if f.victim == "A"]
    assert (leak.source, leak.slot, leak.culprit_seq) == ("B", 0, stray)
    assert report.verdict == "contaminated"


def test_who_shares_what_a_victim_computed_is_also_affected():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 14))
    trace.allocate("A", 0, 0)
    trace.step(("A", 0, 4), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.next_step()
    trace.add("B", [10, 11, 12, 99, *range(20, 24), 50])
    trace.share("B", 0, 0, "k0")
    trace.allocate("B", 1, 1)
    trace.allocate("B", 2, 2)
    trace.step(("B", 4, 5), sample={"B": 91})
    trace.register("B", 1, "k1")
    trace.next_step()
    trace.add("C", [10, 11, 12, 99, *range(20, 24), 60])
    trace.allocate("C", 0, 3)
    trace.share("C", 1, 1, "k1")
    trace.allocate("C", 2, 4)
    trace.schedule(Row("C", 0, 4))
    trace.drop(len(trace.events) - 1)
    trace.step(("C", 0, 4))
    trace.next_step()
    trace.step(("C", 8, 1), sample={"C": 92})
    for request in "ABC":
        trace.finish(request)
    trace.end()
    report = judged(trace)
    (leak,) = leaks(report)
    assert (leak.victim, leak.source, leak.also_affected) == ("B", "A", ("C",))


# pads, groups, windows, missing parts


def test_pad_rows_and_sentinels_are_silent():
    trace = Trace(sentinels=(7,))
    trace.next_step()
    trace.add("A", range(10, 13))
    trace.allocate("A", 0, 0)
    rows = (Row("A", 0, 3), pad(), pad())
    trace.schedule(*rows)
    trace.build(*rows, slot_mapping=(0, 1, 2, 28, -1))
    trace.emit(StepDispatched())
    trace.write(rows[0])
    trace.emit(
        SlotsWritten(write="pad", requests=(None,), positions=(0,), tokens=(0,), slots=(28,))
    )
    trace.emit(StepCompleted())
    trace.sample(list(rows), {"A": 90})
    trace.finish("A")
    trace.end()
    assert_clean(trace)


def test_a_pad_that_wrote_where_a_row_reads_is_foreign_data():
    trace = two_decoding()
    trace.insert(
        trace.find(SlotsWritten, 0) + 1,
        SlotsWritten(write="pad", requests=(None,), positions=(0,), tokens=(0,), slots=(0,)),
    )
    report = judged(trace)
    (leak,) = leaks(report)
    assert (leak.victim, leak.source, leak.slot) == ("A", None, 0)
    assert report.verdict == "contaminated"


def test_two_groups_are_judged_each_in_its_own_pool():
    def both(broken: bool) -> Trace:
        trace = Trace(groups=2)
        trace.next_step()
        trace.add("A", range(10, 13))
        trace.add("B", range(30, 33))
        trace.allocate("A", 0, 0)
        trace.allocate("B", 0, 1)
        trace.allocate("A", 0, 1, group=1)
        trace.allocate("B", 0, 0, group=1)
        rows = (Row("A", 0, 3), Row("B", 0, 3))
        trace.schedule(*rows)
        trace.build(*rows)
        tables = {"block_tables": ((0,), (0,))} if broken else {}
        trace.build(*rows, group=1, **tables)
        trace.emit(StepDispatched())
        trace.write(*rows)
        trace.write(*rows, group=1)
        trace.emit(StepCompleted())
        trace.sample(list(rows), {"A": 90, "B": 91})
        trace.finish("A")
        trace.finish("B")
        trace.end()
        return trace

    assert_clean(both(broken=False))
    report = judged(both(broken=True))
    assert report.roots[0].victim == "A"
    assert {(f.victim, f.source) for f in leaks(report)} == {("A", "B")}


def test_blocks_outside_the_window_may_be_given_back():
    trace = Trace(window=4)
    trace.next_step()
    trace.add("A", range(10, 20))
    for index in range(3):
        trace.allocate("A", index, index)
    trace.step(("A", 0, 10), sample={"A": 90})
    trace.next_step()
    trace.release("A", 0)
    trace.step(("A", 10, 1), sample={"A": 91})
    trace.finish("A")
    trace.end()
    assert_clean(trace)
    build = trace.find(InputsBuilt, 1)
    released = trace.find(BlockReleased)
    trace.edit(build, block_tables=((0, 1, 2),))
    root = root_of(judged(trace))
    assert named(root) == ("dangling-table", "F07", released)


@pytest.mark.parametrize("late", [False, True])
def test_steps_in_flight_are_silent_whenever_writes_are_logged(late):
    assert_clean(overlapped(late))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (StepScheduled, "StepScheduled"),
        (StepDispatched, "StepDispatched"),
        (SlotsWritten, "SlotsWritten"),
        (StepCompleted, "StepCompleted"),
        (InputsBuilt, "InputsBuilt"),
    ],
)
def test_a_kind_that_an_engine_does_not_log_is_missing_and_no_finding(kind, word):
    trace = shared_prefix()
    trace.events = [(step, event) for step, event in trace.events if type(event) is not kind]
    report = judged(trace)
    assert report.findings == ()
    assert report.verdict == "incomplete"
    assert any(word in sentence for sentence in report.missing)


def test_a_trace_without_an_end_or_with_writes_without_tokens_is_incomplete():
    trace = two_decoding()
    trace.drop(len(trace.events) - 1)
    assert judged(trace).verdict == "incomplete"
    trace = two_decoding()
    trace.edit(trace.find(SlotsWritten), tokens=None)
    report = judged(trace)
    assert (report.verdict, report.findings) == ("incomplete", ())


def test_missing_stays_filled_beside_findings():
    trace = shared_prefix()
    trace.edit(trace.find(RequestAdded, 1), prompt_tokens=(10, 11, 12, 99, 50, 51))
    trace.drop(len(trace.events) - 1)
    report = judged(trace)
    assert report.verdict == "contaminated"
    assert report.missing
    assert report.exit_status == 1


def test_only_the_last_build_before_dispatch_counts():
    trace = two_decoding()
    build = trace.find(InputsBuilt, 1)
    step, event = trace.events[build]
    trace.events.insert(build, (step, replace(event, block_tables=((6, 7), (2, 3)))))
    assert_clean(trace)
    trace.events.insert(build + 2, trace.events[build])
    assert judged(trace).verdict == "violated"


def test_two_builds_of_one_step_may_hold_half_of_its_rows_each():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 13))
    trace.add("B", range(30, 33))
    trace.allocate("A", 0, 0)
    trace.allocate("B", 0, 1)
    first, second = Row("A", 0, 3), Row("B", 0, 3)
    trace.schedule(first, second)
    trace.build(first, buffer="ping")
    trace.build(second, buffer="pong")
    trace.emit(StepDispatched())
    trace.write(first, second)
    trace.emit(StepCompleted())
    trace.sample([first], {"A": 90})
    trace.sample([second], {"B": 91})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    assert_clean(trace)


def test_a_mask_that_hides_a_wrong_table_entry_keeps_the_leak_away():
    trace = two_decoding()
    mask = dense(trace)
    build = trace.find(InputsBuilt, 1)
    trace.edit(build, block_tables=((0, 1), (6, 3)))
    report = judged(trace)
    root = root_of(report)
    assert (root.check, root.culprit_seq, root.block) == ("dangling-table", build, 6)
    assert report.verdict == "violated"
    assert mask == build + 1


def test_a_parent_forked_before_its_own_step_writes_for_its_children():
    trace = Trace()
    trace.next_step()
    trace.add("A", range(10, 13))
    trace.add("B", range(10, 13), parent="A")
    trace.allocate("A", 0, 0)
    trace.emit(RequestForked(request="B", parent="A", tokens=3))
    trace.share("B", 0, 0)
    trace.step(("A", 0, 3), sample={"A": 90})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    assert_clean(trace)


def test_a_block_that_comes_back_to_its_first_owner_is_a_new_generation():
    trace = Trace(num_blocks=2)
    for request, first in (("A", 10), ("B", 30), ("C", 10)):
        trace.next_step()
        trace.add(request, range(first, first + 3))
        trace.allocate(request, 0, 0)
        trace.step((request, 0, 3), sample={request: 90})
        trace.finish(request)
    trace.end()
    assert_clean(trace)
    build = trace.find(InputsBuilt, 2)
    trace.edit(build, slot_mapping=(0, 1, -1))
    written = trace.find(SlotsWritten, 2)
    event = trace.events[written][1]
    trace.edit(
        written,
        requests=event.requests[:2],
        positions=event.positions[:2],
        tokens=event.tokens[:2],
        slots=event.slots[:2],
    )
    root, leak = judged(trace).findings
    assert (root.check, root.source, leak.source, leak.victim) == ("unwritten-read", "B", "B", "C")
