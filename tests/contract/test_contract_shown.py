"""Every mechanism's trace, sound or broken, can be looked at: by the commands, by the reports, and
by all that the app makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from breaking import lines, renumbered
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.history import life_of_block, life_of_request, readers_of
from kvrewind.replay.provenance import chain
from kvrewind.replay.report import render
from kvrewind.replay.source import EnvelopeList
from kvrewind.replay.timeline import Timeline
from kvrewind.tui.cli import run
from kvrewind.tui.overview import overviews
from kvrewind.tui.presenters.blame import Blame
from kvrewind.tui.presenters.blocks import PoolView, block_count, cell, large, medium, tiny
from kvrewind.tui.presenters.chain import chain_rows, history_rows
from kvrewind.tui.presenters.events import Names, summary
from kvrewind.tui.presenters.findings import finding_row
from kvrewind.tui.presenters.inspector import Inspected, inspect
from kvrewind.tui.presenters.owners import Owners
from kvrewind.tui.presenters.pieces import Pieces
from kvrewind.tui.presenters.spans import plain
from kvrewind.tui.presenters.steps import column, ruler
from kvrewind.tui.presenters.tables import request_order, request_row, table_rows
from mechanisms import SCENES, TWINS, Scene, Twin
from scenes_groups import two_groups

WIDTH = 80
EVERY = 9
"""States are looked at this many events apart."""

Traces = Callable[[str], list[Envelope]]


def of_scene(scene: Scene) -> list[Envelope]:
    return scene().envelopes()


def of_twin(twin: Twin) -> list[Envelope]:
    trace = twin.scene()
    twin.breaks(trace)
    return renumbered(trace).envelopes()


ALL = [
    *(pytest.param(of_scene, scene, id=scene.__name__) for scene in SCENES),
    *(pytest.param(of_twin, twin, id=twin.name) for twin in TWINS[::2]),
]


@pytest.mark.parametrize(("made", "of"), ALL)
def test_the_app_has_something_to_show_of_every_moment(made: Callable, of: object) -> None:
    envelopes: list[Envelope] = made(of)
    timeline, report = Timeline(envelopes), check(envelopes)
    *_, overview = overviews(EnvelopeList(envelopes))
    names = Names(Owners(overview.requests), Pieces(dict(overview.pieces)))
    blame = Blame(report.findings)
    assert ruler(overview.steps, 3)
    assert [column(step, 8, blame) for step in overview.steps]
    for finding in report.findings:
        assert plain(finding_row(finding, finding.position, names).line)
    for envelope in envelopes:
        summary(envelope, names)
    shown = {*range(0, len(envelopes), EVERY), *(f.seq for f in report.findings)}
    for seq in sorted(shown):
        state, envelope = timeline.state_at(seq), envelopes[seq]
        for group in state.pools:
            view = PoolView(state, blame, next(iter(state.requests), None), group)
            for number in range(block_count(state)):
                one = cell(view, number)
                assert large(one, names) and medium(one, names) and tiny(one, names)
            for request in request_order(state):
                view = PoolView(state, blame, request, group)
                assert plain(request_row(view, request, names).line)
                table_rows(view, names), table_rows(view, names, is_narrow=True)
        block = getattr(envelope.event, "block", None)
        assert inspect(Inspected(envelope, state, blame, block), names, WIDTH)


@pytest.mark.parametrize(("made", "of"), ALL)
def test_reports_chains_and_lives_can_be_told(made: Callable, of: object) -> None:
    envelopes: list[Envelope] = made(of)
    timeline, report = Timeline(envelopes), check(envelopes)
    source = EnvelopeList(envelopes)
    *_, overview = overviews(source)
    names = Names(Owners(overview.requests), Pieces(dict(overview.pieces)))
    assert render(report, source, WIDTH)
    roots = {root.culprit_seq: root for root in report.roots}
    for finding in report.findings:
        links = chain(timeline, finding, roots.get(finding.culprit_seq))
        assert chain_rows(links, names)
        if finding.block is not None:
            history_rows(life_of_block(source, finding.block, links.group), finding.seq, names)
    header = envelopes[0].event
    for group in range(len(header.groups)):
        told = sum(len(life_of_block(source, block, group)) for block in range(header.num_blocks))
        assert told
        read = [readers_of(source, block, group=group) for block in range(header.num_blocks)]
        assert any(read)
    for request in overview.requests:
        assert life_of_request(source, request)


@pytest.mark.parametrize(("made", "of"), ALL[::7])
def test_the_commands_take_it(
    made: Callable, of: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    envelopes: list[Envelope] = made(of)
    path = tmp_path / "scene.kvtrace"
    with TraceWriter(path) as sink:
        for envelope in envelopes:
            sink.emit(envelope.event, envelope.step)
    with TraceReader(path) as reader:
        assert [e.event for e in reader.envelopes()] == [e.event for e in envelopes]
    report = check(envelopes)
    assert run(["check", str(path), "--format", "json"]) == report.exit_status
    assert json.loads(capsys.readouterr().out) == report.to_json()
    assert run(["check", str(path)]) == report.exit_status
    assert report.verdict in capsys.readouterr().out
    for command in (["info", str(path)], ["export", str(path), "--out", "-"]):
        assert run(command) == 0
        assert capsys.readouterr().out


@pytest.mark.parametrize("group", [None, 1])
def test_a_chain_is_about_the_pool_in_which_the_harm_was_done(group: int | None) -> None:
    """KV groups have blocks of the same numbers: each finding is followed in its own."""
    trace = two_groups()
    built = lines(trace, "InputsBuilt", step=4, group=group)[0]
    built["block_tables"].reverse()
    envelopes = renumbered(trace).envelopes()
    harm = next(f for f in check(envelopes).findings if f.check == "foreign-read")
    links = chain(Timeline(envelopes), harm)
    assert links.group == (group or 0)
    assert links.read is not None
    assert {slot // trace.size for slot in links.read.slots} == {harm.block}
    assert {written.request for written in links.written} == {harm.source}
