"""What a person reads, made from real states of a leaking run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kvrewind.recorder.events import EVENTS, BlockAllocated, BlockFreed, BlockShared, MaskBuilt
from kvrewind.recorder.fields import fields_of
from kvrewind.replay.check import check
from kvrewind.replay.provenance import chain
from kvrewind.replay.source import EnvelopeList
from kvrewind.replay.timeline import Timeline
from kvrewind.tui.overview import overviews
from kvrewind.tui.presenters.blame import Blame
from kvrewind.tui.presenters.blocks import LARGE_WIDTH, PoolView, cell, large, medium, tiny
from kvrewind.tui.presenters.chain import chain_rows, history_rows
from kvrewind.tui.presenters.events import SUMMARIES, Names, summary
from kvrewind.tui.presenters.findings import finding_row
from kvrewind.tui.presenters.header import header_line
from kvrewind.tui.presenters.inspector import Inspected, inspect, slot_rows
from kvrewind.tui.presenters.owners import Owners
from kvrewind.tui.presenters.pieces import Pieces
from kvrewind.tui.presenters.spans import (
    OWNER_COLOURS,
    Span,
    fitted,
    flowed,
    plain,
    ranges,
    wrapped,
)
from kvrewind.tui.presenters.steps import column, column_width, ruler
from kvrewind.tui.presenters.tables import request_order, request_row, table_rows

CULPRIT = 41
"""`BlockShared`: r1 gets block 2, in which r0's passphrase is."""


@pytest.fixture(scope="session")
def timeline(leak):
    return Timeline(leak)


@pytest.fixture(scope="session")
def blame(leak):
    return Blame(check(leak).findings)


@pytest.fixture(scope="session")
def names(leak):
    *_, overview = overviews(EnvelopeList(leak))
    return Names(Owners(overview.requests), Pieces(dict(overview.pieces)))


def view_at(timeline, blame, seq, request="r1"):
    return PoolView(timeline.state_at(seq), blame, request)


def roles(line, text):
    return [span.role for span in line if text in span.text]


# --- owners and text ------------------------------------------------------------------------------


def test_ten_neighbouring_requests_have_ten_colours():
    owners = Owners()
    assert len({owners.of(f"r{i}").colour for i in range(7, 17)}) == OWNER_COLOURS


def test_names_without_numbers_have_colours_in_order_of_arrival():
    owners = Owners(["ann", "bob", "cy"])
    assert [owners.of(name).colour for name in ("cy", "ann", "bob")] == [2, 0, 1]


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("r0", "r0"),
        ("r123", "r123"),
        ("customer-42", "cu42"),
        ("r7#2", "r7#2"),
        ("alexandra", "alex"),
        (None, "pad"),
    ],
)
def test_a_tag_is_short_and_keeps_the_number(name, tag):
    assert Owners().of(name).tag == tag


@pytest.mark.parametrize(
    ("known", "tokens", "text"),
    [
        ({1: "the", 2: "word", 3: "##s"}, (1, 2, 3), "the words"),
        ({1: "Ġthe", 2: "Ġword", 3: "s"}, (1, 2, 3), "the words"),
        ({1: "▁the", 2: "▁word", 3: "s"}, (1, 2, 3), "the words"),
        ({1: "the", 2: "word"}, (1, 9, 2), "the ? word"),
        ({}, (1, 2), None),
    ],
)
def test_tokens_read_as_their_tokenizer_joins_them(known, tokens, text):
    assert Pieces(known).text(tokens) == text


def test_control_characters_never_reach_the_terminal():
    assert Pieces({1: "a\x1b[2Jb", 2: "c\nd"}).text((1, 2)) == "a·[2Jb c↵d"


def test_a_line_is_cut_by_cells_and_not_by_characters():
    wide = (Span("日本語", "text"), Span("abc", "dim"))
    assert fitted(wide, 9) == (wide, 9)
    shown, width = fitted(wide, 6)
    assert (plain(shown), width) == ("日本 …", 6)
    assert plain(fitted((Span("abcdef"),), 4)[0]) == "abc…"


def test_ranges_and_paragraphs():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2 5 7-8"
    assert [plain(line) for line in wrapped("one two three", 14, indent="  ")] == [
        "  one two",
        "  three",
    ]
    pieces = [(Span("abcd"),), (Span("efgh"),), (Span("ij"),)]
    assert [plain(line) for line in flowed(pieces, 10)] == ["abcd  efgh", "ij"]


# --- events ---------------------------------------------------------------------------------------


def test_every_kind_of_event_has_a_summary():
    assert set(SUMMARIES) == set(EVENTS)


def test_summaries_name_who_and_which_block(leak, names):
    shared = leak[CULPRIT]
    assert isinstance(shared.event, BlockShared)
    assert plain(summary(shared, names)) == "b2 also to r1 [2], 2 holders"
    allocated = next(e for e in leak if isinstance(e.event, BlockAllocated))
    assert plain(summary(allocated, names)) == "b0 to r0 [0]"
    freed = next(e for e in leak if isinstance(e.event, BlockFreed) and e.event.cached)
    assert plain(summary(freed, names)).endswith("free, stays cached")


def test_a_sampled_token_is_shown_as_text(leak, names):
    sampled = next(e for e in leak if e.kind == "TokensSampled")
    assert plain(summary(sampled, names)) == "r0 “one”"


def test_details_say_every_field_of_an_event(leak, names):
    from kvrewind.tui.presenters.details import details

    event = leak[CULPRIT].event
    said = " ".join(plain(row.line) for row in details(event, names, 60))
    given = [s.name for s in fields_of(BlockShared) if getattr(event, s.name) is not None]
    assert len(given) == 6
    assert all(name in said for name in given)


# --- blocks ---------------------------------------------------------------------------------------


def test_a_block_belongs_to_who_wrote_it_and_shows_who_else_reads_it(timeline, blame, names):
    before = cell(view_at(timeline, blame, CULPRIT - 1), 2)
    after = cell(view_at(timeline, blame, CULPRIT), 2)
    assert (before.owner, before.others, before.is_blamed) == ("r0", (), False)
    assert (after.owner, after.others, after.is_blamed) == ("r0", ("r1",), True)
    assert after.marks == "◂◆"
    top, bottom = large(after, names)
    assert plain(top) == "2    ◂◆"
    assert plain(bottom) == "r0→r1".ljust(LARGE_WIDTH)
    assert bottom[0].role.startswith("owner0.fill")


def test_smaller_cells_keep_the_owner_and_the_gravest_mark(timeline, blame, names):
    shown = cell(view_at(timeline, blame, CULPRIT), 2)
    assert plain(medium(shown, names)) == "r0+1 ◆"
    assert plain(tiny(shown, names)) == "r0◆"
    unshared = cell(view_at(timeline, blame, CULPRIT, request="r0"), 3)
    assert plain(tiny(unshared, names)) == "r0◂"


def test_a_cell_says_held_cached_or_free(timeline, blame, leak):
    freed = next(e for e in leak if isinstance(e.event, BlockFreed) and e.event.cached)
    assert isinstance(freed.event, BlockFreed)
    view = view_at(timeline, blame, freed.seq)
    assert cell(view, freed.event.block).fill == "cached"
    assert cell(view, 0).fill == "held"
    assert cell(view, 21).fill == "free"


def test_blame_lasts_while_the_victim_reads_the_block(timeline, blame, leak):
    released = next(
        e
        for e in leak
        if e.kind == "BlockReleased"
        and getattr(e.event, "block", None) == 2
        and getattr(e.event, "request", None) == "r7"
    )
    assert cell(view_at(timeline, blame, released.seq - 1), 2).is_blamed
    assert not cell(view_at(timeline, blame, CULPRIT - 1), 2).is_blamed


def test_a_mask_shows_which_foreign_blocks_a_row_reads(opened, names):
    reader = opened("mask-broadcast-wrong-axis")
    found = check(reader.envelopes())
    root = found.roots[0]
    assert isinstance(reader.at(root.culprit_seq).event, MaskBuilt)
    state = Timeline(reader).state_at(root.culprit_seq)
    view = PoolView(state, Blame(found.findings), root.victim)
    own = {block for block in state.pool().table(root.victim) if block is not None}
    assert view.reads > own
    foreign = min(view.reads - own)
    assert cell(view, foreign).owner != root.victim
    assert cell(view, foreign).is_read


# --- tables ---------------------------------------------------------------------------------------


def test_foreign_tokens_in_a_block_table_stand_out(timeline, blame, names):
    row = table_rows(view_at(timeline, blame, CULPRIT), names)[2]
    assert row.block == 2
    assert "bemovi" in "".join(span.text for span in row.line if span.role == "bad")
    assert roles(row.line, " is") == ["text"]
    own = table_rows(view_at(timeline, blame, CULPRIT, request="r0"), names)[2]
    assert "bad" not in [span.role for span in own.line if span.text.strip()]
    assert [plain(r.line)[8] for r in table_rows(view_at(timeline, blame, CULPRIT), names)] == [
        " ", " ", "◆",
    ]  # fmt: skip


def test_an_answer_with_a_foreign_passphrase_stands_out(timeline, blame, names, leak):
    view = view_at(timeline, blame, leak[-1].seq)
    row = request_row(view, "r5", names)
    assert roles(row.line, "bemovi") == ["bad"]
    assert roles(request_row(view, "r0", names).line, "bemovi") == ["text"]


def test_requests_at_work_come_before_those_that_finished(timeline, leak):
    finished = next(e for e in leak if e.kind == "RequestFinished")
    order = request_order(timeline.state_at(finished.seq))
    assert order[-1] == finished.event.request
    assert order[0] == "r0"


# --- steps ----------------------------------------------------------------------------------------


def test_steps_carry_tokens_by_phase_and_the_gravest_mark(leak, blame):
    *_, overview = overviews(EnvelopeList(leak))
    by_number = {step.step: step for step in overview.steps}
    assert (by_number[1].prefill, by_number[1].decode) == (57, 0)
    assert by_number[2].prefill > 0
    assert by_number[2].decode == 1
    assert column(by_number[2], 60, blame).mark.text == "◆"
    assert column(by_number[1], 60, blame).mark.text == " "
    assert column(by_number[1], 60, blame).role == "phase.prefill"
    assert column(by_number[30], 60, blame).role == "phase.decode"


def test_the_step_of_a_position_is_the_one_that_began_last(leak, timeline):
    *_, overview = overviews(EnvelopeList(leak))
    for seq in (0, 1, CULPRIT, leak[-1].seq):
        index = overview.index_of(seq)
        assert index is not None
        assert overview.steps[index].step == leak[seq].step


@pytest.mark.parametrize(("steps", "width", "each"), [(36, 118, 3), (36, 78, 2), (5000, 118, 1)])
def test_all_steps_are_seen_at_once_if_they_can_be(steps, width, each):
    assert column_width(steps, width) == each


def test_the_ruler_numbers_columns_where_there_is_room(leak):
    *_, overview = overviews(EnvelopeList(leak))
    text = ruler(overview.steps, 3)
    assert text[0] == "0"
    assert text[15] == "5"
    assert text[30:32] == "10"
    assert "12" not in text


# --- findings -------------------------------------------------------------------------------------


def test_a_finding_is_one_line_with_who_read_whose_block(blame, names):
    row = finding_row(blame.findings[0], "2:41", names)
    assert plain(row.line).startswith("◆ F01 identity        2:41     r1←r0 b2  ")
    assert (row.seq, row.block, row.request) == (CULPRIT, 2, "r1")


def test_the_inspector_tells_the_whole_chain_behind_a_culprit(timeline, blame, names):
    harm = blame.harm_at(CULPRIT)
    assert harm is not None
    assert harm.check == "foreign-read"
    rows = chain_rows(chain(timeline, harm, blame.findings[0]), names)
    shown = Inspected(
        timeline.at(CULPRIT), timeline.state_at(CULPRIT), blame, block=2, chain=tuple(rows)
    )
    lines = [plain(row.line) for row in inspect(shown, names, 60)]
    assert lines[0].startswith("◆ to blame for identity F01")
    links = [line.split()[0] + " " + line.split()[1] for line in lines if ":" in line]
    wanted = ["read by", "last written", "allocated by", "held since", "allowed by"]
    assert [link for link in links if link in wanted] == wanted
    assert any("bemovi" in line and "r0" in line for line in lines)


def test_each_slot_of_a_block_names_its_last_writer(timeline, names):
    rows = slot_rows(timeline.state_at(CULPRIT), 2, names, 60)
    assert plain(rows[0].line).startswith("  32-47     by r0 prefill 1:18 “")
    assert rows[0].seq == 18
    unwritten = slot_rows(timeline.state_at(CULPRIT), 21, names, 60)
    assert [plain(row.line).split()[1:] for row in unwritten] == [["never", "written"]]


def test_a_blocks_life_is_shown_around_the_present(timeline, names):
    from kvrewind.replay.history import allocations_of_block

    life = allocations_of_block(timeline.source, 2)
    rows = history_rows(life, CULPRIT, names)
    now = [row for row in rows if plain(row.line).startswith(" ▸")]
    assert [row.seq for row in now] == [CULPRIT]
    assert all(row.seq <= CULPRIT for row in rows[: rows.index(now[0])] if row.seq is not None)
    assert rows[-1].line[-1].role == "dim"


def test_findings_are_found_by_event_block_and_step(blame):
    assert blame.mark(CULPRIT) == "culprit"
    assert blame.mark(58) == "detected"
    assert blame.mark(57) is None
    assert blame.marks_in(0, CULPRIT - 1) is None
    assert blame.marks_in(0, CULPRIT) == "culprit"
    assert blame.marks_in(55, 60) == "detected"
    assert [f.check for f in blame.at(CULPRIT)] == ["identity", "foreign-read"]
    of_block = blame.of_block(2)
    assert of_block is not None
    assert [of_block.is_open(seq) for seq in (CULPRIT - 1, CULPRIT, 58, 9999)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert of_block.is_victim("r1", CULPRIT)
    assert not of_block.is_victim("r2", CULPRIT)


def test_the_header_keeps_verdict_and_position_when_it_is_narrow(leak):
    report = check(leak)
    line = plain(header_line("a" * 60, leak[0].event, report, (), "2:41", 60))
    assert len(line) == 60
    assert "contaminated" in line
    assert line.endswith("at 2:41 ")


def test_presenters_and_the_session_need_no_terminal_library():
    code = (
        "import sys, kvrewind.tui.session, kvrewind.tui.presenters.legend, "
        "kvrewind.tui.presenters.trials; "
        "print([name for name in ('textual', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
