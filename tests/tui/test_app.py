"""What a person on call does in the app, key by key, on a trace with a leak."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from kvrewind.recorder.errors import BadInput
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.findings import Finding
from kvrewind.tui.app import KvrewindApp
from kvrewind.tui.screens.debugger import DebuggerScreen
from kvrewind.tui.screens.goto import GotoScreen
from kvrewind.tui.screens.rerun import RerunScreen
from kvrewind.tui.widgets.block_grid import BlockGrid

LEAK = "leak"
SIZE = (120, 40)


def seen(app: KvrewindApp, selector: str) -> str:
    """The text that a pane shows now, title first."""
    widget = app.screen.query_one(selector)
    lines = [widget.render_line(y).text for y in range(widget.size.height)]
    return "\n".join([str(widget.border_title or ""), *lines])


async def until(pilot, condition: Callable[[], bool]) -> None:
    """Waits for what a worker brings; a test that waits in vain fails by its own assertion."""
    for _ in range(400):
        if condition():
            break
        await asyncio.sleep(0.05)
    await pilot.pause()
    assert condition()


async def checked(pilot) -> None:
    await until(pilot, lambda: pilot.app.session.report is not None)


def first_root(app: KvrewindApp) -> Finding:
    assert app.session.report is not None
    return app.session.report.roots[0]


async def test_opens_at_the_culprit_of_the_first_finding(opened):
    app = KvrewindApp(opened(LEAK))
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        root = first_root(app)
        assert app.session.seq == root.culprit_seq
        assert app.session.envelope.kind == "BlockShared"
        assert "contaminated" in seen(app, "#head")
        assert f"block table of {root.victim}" in seen(app, "#table")
        assert "identity" in seen(app, "#findings")
        await until(pilot, lambda: "allowed by" in seen(app, "#inspector"))
        assert "last written by" in seen(app, "#inspector")


async def test_a_given_position_is_kept_when_findings_arrive(opened):
    app = KvrewindApp(opened(LEAK), "7:162")
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        assert app.session.seq == 162
        assert "at 7:162" in seen(app, "#head")


async def test_a_clean_trace_stays_at_its_beginning(opened):
    app = KvrewindApp(opened("clean"))
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        assert app.session.seq == 0
        assert "clean" in seen(app, "#head")
        assert "no finding" in seen(app, "#findings")
        await pilot.press("f", "c")
        assert app.session.seq == 0


@pytest.mark.parametrize(
    ("keys", "seq"),
    [
        (("n",), 41), (("right",), 41), (("down",), 41), (("p",), 39), (("left",), 39),
        (("up",), 39), (("n", "n", "p"), 41), (("home",), 0), (("home", "p"), 0),
    ],
)  # fmt: skip
async def test_keys_step_from_event_to_event(opened, keys, seq):
    app = KvrewindApp(opened(LEAK), "40")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(*keys)
        assert app.session.seq == seq
        assert app.session.state is not None
        assert app.session.state.seq == seq


async def test_keys_step_from_step_to_step(opened):
    app = KvrewindApp(opened(LEAK), "162")
    steps = app.session.timeline
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("N")
        assert app.session.seq == steps.seq_of_step(8)
        await pilot.press("right_square_bracket")
        assert app.session.seq == steps.seq_of_step(9)
        await pilot.press("P", "left_square_bracket", "P")
        assert app.session.seq == steps.seq_of_step(6)


async def test_the_last_event_is_one_key_away_and_is_the_end(opened):
    app = KvrewindApp(opened(LEAK), "3")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("end")
        assert app.session.envelope.kind == "RunEnded"
        await pilot.press("n", "N")
        assert app.session.envelope.kind == "RunEnded"


async def test_go_to_takes_a_position_and_says_what_is_wrong_with_another(opened):
    app = KvrewindApp(opened(LEAK), "3")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("g", *"9:162", "enter")
        assert isinstance(app.screen, GotoScreen)
        assert "7:162" in str(app.screen.query_one("#hint").render())
        await pilot.press("escape")
        assert app.session.seq == 3
        await pilot.press("g", *"7:162", "enter")
        await pilot.pause()
        assert app.session.seq == 162


async def test_go_to_a_step_alone_is_its_first_event(opened):
    app = KvrewindApp(opened(LEAK), "3")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("g", *"7:", "enter")
        await pilot.pause()
        assert app.session.seq == app.session.timeline.seq_of_step(7)


async def test_findings_lead_from_culprit_to_culprit_and_back(opened):
    app = KvrewindApp(opened(LEAK))
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        culprits = sorted({f.culprit_seq for f in app.session.report.findings})
        assert len(culprits) > 2
        first = app.session.seq
        await pilot.press("f")
        assert app.session.seq == culprits[culprits.index(first) + 1]
        await pilot.press("home", "c")
        assert app.session.seq == first_root(app).culprit_seq
        await pilot.press("b", "b")
        assert app.session.seq == culprits[culprits.index(first) + 1]


async def test_standing_on_a_finding_goes_to_its_culprit(opened):
    app = KvrewindApp(opened(LEAK))
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        app.screen.query_one("#findings").focus()
        await pilot.press("down", "down")
        assert app.session.seq == app.session.report.findings[2].culprit_seq


async def test_stepping_follows_the_request_of_the_event(opened):
    app = KvrewindApp(opened(LEAK), "162")
    async with app.run_test(size=SIZE) as pilot:
        assert "block table of r2" in seen(app, "#table")
        await pilot.press("n")
        assert "block table of r7" in seen(app, "#table")


async def test_a_click_on_a_request_keeps_its_table_until_escape(opened):
    app = KvrewindApp(opened(LEAK), "162")
    async with app.run_test(size=SIZE) as pilot:
        line = seen(app, "#requests").splitlines()[1]
        assert line.split()[0] == "r0"
        await pilot.click("#requests", offset=(3, 1))
        await pilot.press("n", "n")
        assert "block table of r0" in seen(app, "#table")
        await pilot.press("escape")
        assert "block table of r7" in seen(app, "#table")


async def test_a_click_on_a_block_inspects_it(opened):
    app = KvrewindApp(opened(LEAK), "162")
    async with app.run_test(size=SIZE) as pilot:
        grid = app.screen.query_one(BlockGrid)
        # the third cell of the first line: content begins after border and padding
        await pilot.click(grid, offset=(24, 1))
        await pilot.pause()
        assert app.session.picked_block == 2
        shown = seen(app, "#inspector")
        assert shown.splitlines()[1].startswith("block b2")
        assert "by r0 prefill 1:18" in shown
        await until(pilot, lambda: "allocated to r0" in seen(app, "#inspector"))


async def test_a_line_of_the_inspector_leads_to_its_event(opened):
    app = KvrewindApp(opened(LEAK), "162")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.click(BlockGrid, offset=(24, 1))
        await pilot.pause()
        app.screen.query_one("#inspector").focus()
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert app.session.envelope.position == "1:18"
        await pilot.press("b")
        assert app.session.seq == 162


async def test_a_click_on_a_step_goes_to_its_beginning(opened):
    app = KvrewindApp(opened(LEAK), "3")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: len(app.session.overview.steps) > 1)
        # three cells a step, after one cell of padding
        await pilot.click("#steps", offset=(1 + 3 * 9, 2))
        await pilot.pause()
        assert app.session.seq == app.session.timeline.seq_of_step(9)


async def test_re_execution_shows_the_verdict_under_each_switch(opened):
    app = KvrewindApp(opened(LEAK))
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        await pilot.press("r")
        screen = app.screen
        assert isinstance(screen, RerunScreen)
        await until(pilot, lambda: None not in screen.outcomes)
        shown = str(screen.query_one("#trials").render()).splitlines()
        verdicts = {line[:26].strip(): line[26:].split()[0] for line in shown}
        assert verdicts == {
            "as recorded": "contaminated",
            "prefix cache off": "clean",
            "continuous batching off": "contaminated",
            "one request at a time": "contaminated",
        }
        assert "prefix cache off" in str(screen.query_one("#conclusion").render())
        await pilot.press("escape")
        assert isinstance(app.screen, DebuggerScreen)


async def test_a_run_that_cant_be_re_executed_says_why(opened):
    def refuse(switches):
        raise BadInput("the model is not here")

    app = KvrewindApp(opened(LEAK), rerun=refuse)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("r")
        screen = app.screen
        await until(pilot, lambda: None not in screen.outcomes)
        assert "the model is not here" in str(screen.query_one("#trials").render())


async def test_an_incomplete_trace_says_so_and_can_be_stepped(tmp_path, leak):
    path = tmp_path / "killed.kvtrace"
    with TraceWriter(path) as sink:
        for envelope in leak[:300]:
            sink.emit(envelope.event, envelope.step)
    app = KvrewindApp(TraceReader(path))
    async with app.run_test(size=SIZE) as pilot:
        await checked(pilot)
        assert "incomplete" in seen(app, "#head")
        assert "no end record" in seen(app, "#head")
        await pilot.press("n", "n")
        assert app.session.seq == first_root(app).culprit_seq + 2


async def test_a_damaged_trace_is_shown_up_to_the_damage(tmp_path, trace_of):
    path = tmp_path / "damaged.kvtrace"
    data = bytearray(trace_of("leak").read_bytes())
    behind_the_middle = len(data) * 3 // 4 // 4096 * 4096
    data[behind_the_middle : behind_the_middle + 8192] = b"\xff" * 8192
    path.write_bytes(data)
    with TraceReader(path) as reader:
        app = KvrewindApp(reader)
        async with app.run_test(size=SIZE) as pilot:
            await checked(pilot)
            assert "damaged" in seen(app, "#head")
            await pilot.press("end")
            assert 100 < app.session.seq < 500
            assert app.session.state is not None


async def test_one_pane_can_fill_the_screen_and_give_it_back(opened):
    app = KvrewindApp(opened(LEAK), "41")
    async with app.run_test(size=(80, 24)) as pilot:
        before = app.screen.query_one("#events").size
        await pilot.press("z")
        await pilot.pause()
        assert app.screen.query_one("#events").size.height > before.height
        await pilot.press("z")
        await pilot.pause()
        assert app.screen.query_one("#events").size == before


def test_the_help_explains_every_key():
    from kvrewind.tui.presenters.legend import KEYS

    explained = " ".join(key for key, _ in KEYS).split()
    names = {
        "question_mark": "?", "full_stop": ".", "comma": ",", "left_square_bracket": "[",
        "right_square_bracket": "]", "right": "→", "left": "←", "escape": "esc",
    }  # fmt: skip
    bound = [key for b in DebuggerScreen.BINDINGS for key in getattr(b, "key").split(",")]  # noqa: B009
    assert len(bound) > 15
    assert {names.get(key, key) for key in bound} <= set(explained)
