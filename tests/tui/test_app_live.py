"""The app on a trace that another process is writing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.tui.app import KvrewindApp
from kvrewind.tui.messages import StateFolded
from live import LEAK, LiveWriter

SIZE = (120, 40)
EVENTS = list(read_jsonl(LEAK))
LAST_STEP = EVENTS[-1].step


def last_seq_of(step: int) -> int:
    return max(e.seq for e in EVENTS if e.step == step)


def seen(app: KvrewindApp, selector: str) -> str:
    widget = app.screen.query_one(selector)
    lines = [widget.render_line(y).text for y in range(widget.size.height)]
    return "\n".join([str(widget.border_title or ""), *lines])


async def until(pilot, condition: Callable[[], bool]) -> None:
    """Waits for what workers bring; a test that waits in vain fails by its own assertion."""
    for _ in range(400):
        if condition():
            break
        await asyncio.sleep(0.05)
    await pilot.pause()
    assert condition()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveWriter]:
    """A run that has done three steps."""
    writer = LiveWriter(tmp_path / "live.kvtrace", LEAK)
    writer.until(3)
    yield writer
    writer.kill()


@pytest.fixture
def app(live: LiveWriter, tmp_path: Path) -> Iterator[KvrewindApp]:
    with TraceReader(tmp_path / "live.kvtrace") as reader:
        yield KvrewindApp(reader)


async def test_the_newest_step_is_followed(app: KvrewindApp, live: LiveWriter) -> None:
    async with app.run_test(size=SIZE) as pilot:
        assert app.session.seq == last_seq_of(3)
        assert "live, following" in seen(app, "#head")
        for step in (4, 7):
            live.until(step)
            await until(pilot, lambda step=step: app.session.seq == last_seq_of(step))
            assert app.session.state is not None
            assert app.session.state.seq == app.session.seq
            assert f"events · {app.session.seq} of {app.session.seq}" in seen(app, "#events")
            assert app.session.overview.steps[-1].step == step
        assert app.session.overview.steps[7].prefill == 8
        assert "8 at work" in seen(app, "#requests")
        assert app.session.overview.requests[-1] == "r7"


async def test_who_follows_is_led_to_the_end_also_where_it_comes_while_a_state_is_folded(
    app: KvrewindApp, live: LiveWriter
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        session = app.session
        seq, state, session.state = session.seq, session.state, None
        assert state is not None
        live.until(LAST_STEP)
        await until(pilot, lambda: not session.is_live)
        assert session.seq == seq
        app.screen.post_message(StateFolded(seq, state))
        await until(pilot, lambda: session.seq == EVENTS[-1].seq and session.state is not None)
        await pilot.press("p")
        assert session.seq == EVENTS[-1].seq - 1


async def test_findings_come_with_the_steps(app: KvrewindApp, live: LiveWriter) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: len(app.session.blame.findings) == 8)
        assert "contaminated  8 findings so far" in seen(app, "#head")
        live.until(5)
        await until(pilot, lambda: len(app.session.blame.findings) == 10)
        assert "1 root, 9 more" in seen(app, "#findings")
        assert app.session.seq == last_seq_of(5)
        await pilot.press("f")
        assert app.session.envelope.kind == "BlockShared"
        assert "F to follow" in seen(app, "#head")


async def test_who_stepped_back_stays_until_they_follow_again(
    app: KvrewindApp, live: LiveWriter
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("P", "P")
        place = app.session.seq
        assert place < last_seq_of(2)
        live.until(6)
        await until(pilot, lambda: app.session.last_seq == last_seq_of(6))
        assert app.session.seq == place
        assert "live, F to follow" in seen(app, "#head")
        await pilot.press("n")
        assert app.session.seq == place + 1
        await pilot.press("F")
        assert app.session.seq == last_seq_of(6)
        live.until(7)
        await until(pilot, lambda: app.session.seq == last_seq_of(7))
        await pilot.press("F")  # stays here
        live.until(8)
        await until(pilot, lambda: app.session.last_seq == last_seq_of(8))
        assert app.session.seq == last_seq_of(7)
        await pilot.press("end")
        live.until(9)
        await until(pilot, lambda: app.session.seq == last_seq_of(9))


async def test_a_given_position_is_where_it_opens(live: LiveWriter, tmp_path: Path) -> None:
    with TraceReader(tmp_path / "live.kvtrace") as reader:
        app = KvrewindApp(reader, "2:")
        async with app.run_test(size=SIZE) as pilot:
            live.until(5)
            await until(pilot, lambda: app.session.last_seq == last_seq_of(5))
            assert app.session.envelope.step == 2


async def test_the_end_of_the_run_leaves_a_finished_trace(
    app: KvrewindApp, live: LiveWriter, tmp_path: Path
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.session.report is not None)
        live.until(LAST_STEP)
        await until(pilot, lambda: not app.session.is_live and app.session.report is not None)
        assert app.session.envelope.kind == "RunEnded"
        assert app.session.report.verdict == "contaminated"
        assert app.session.problems == ()
        assert "live," not in seen(app, "#head")
        await pilot.press("F")
        assert app.session.is_following is False
    assert [p.name for p in tmp_path.iterdir()] == ["live.kvtrace"]


async def test_a_writer_that_died_is_told(app: KvrewindApp, live: LiveWriter) -> None:
    async with app.run_test(size=SIZE) as pilot:
        live.kill()
        await until(pilot, lambda: not app.session.is_live and app.session.report is not None)
        assert "no end record" in seen(app, "#head")
        assert app.session.seq == last_seq_of(3)
        await pilot.press("P")
        assert app.session.envelope.step == 3


@pytest.mark.parametrize("change", ["removed", "replaced"])
async def test_a_file_that_is_not_the_same_any_more_is_told_and_not_read(
    app: KvrewindApp, tmp_path: Path, change: str
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.session.report is not None)
        (tmp_path / "live.kvtrace").unlink()
        if change == "replaced":
            with TraceWriter(tmp_path / "other.kvtrace") as other:
                other.write_envelopes(EVENTS)
            other.path.rename(tmp_path / "live.kvtrace")
        await until(pilot, lambda: not app.session.is_live)
        messages = [notification.message for notification in app._notifications]
        assert any("removed" in m or "Another file" in m for m in messages)
        await pilot.press("P", "n", "N", "home", "end", "f")
        await pilot.pause()
        assert app.session.last_seq == last_seq_of(3)


async def test_a_trace_that_nobody_writes_is_not_live(trace_of) -> None:
    with TraceReader(trace_of("leak")) as reader:
        app = KvrewindApp(reader)
        async with app.run_test(size=SIZE):
            assert not app.session.is_live
            assert app.session.seq == 0


@pytest.mark.parametrize("size", [(80, 24), SIZE], ids=["80x24", "120x40"])
def test_a_run_that_is_followed(size, live: LiveWriter, tmp_path: Path, snap_compare) -> None:
    async def judged(pilot) -> None:
        session = pilot.app.session
        live.until(9)
        await until(pilot, lambda: session.seq == last_seq_of(9))
        await until(pilot, lambda: len(session.blame.findings) == 14)
        pilot.app.clear_notifications()
        await pilot.pause()

    with TraceReader(tmp_path / "live.kvtrace") as reader:
        assert snap_compare(KvrewindApp(reader), terminal_size=size, run_before=judged)
