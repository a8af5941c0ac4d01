"""What the app looks like, at the size of a small and of a large terminal.

After a deliberate change: `pytest tests/tui/test_app_snapshots.py --snapshot-update`, then look at
the pictures.
"""

from __future__ import annotations

import asyncio

import pytest
from kvrewind.tui.app import KvrewindApp
from kvrewind.tui.presenters.spans import plain
from kvrewind.tui.widgets.inspector import Inspector

SIZES = [(80, 24), (120, 40)]


@pytest.fixture
def app(opened):
    return KvrewindApp(opened("leak"), title="leak.kvtrace")


async def explained(pilot) -> None:
    """Until the findings are in and what stands behind the first of them was looked up."""
    inspector = pilot.app.screen.query_one(Inspector)
    for _ in range(400):
        rows = [inspector.row(index, inspector.width) for index in range(inspector.count)]
        if any(plain(row.line).strip().startswith("read by") for row in rows):
            break
        await asyncio.sleep(0.05)
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
def test_at_the_culprit_of_a_leak(app, snap_compare, size):
    assert snap_compare(app, terminal_size=size, run_before=explained)


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
def test_after_the_leak_when_foreign_words_were_said(app, snap_compare, size):
    async def later(pilot) -> None:
        await explained(pilot)
        await pilot.press("g", *"14:", "enter")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=later)


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
def test_the_keys_and_signs(app, snap_compare, size):
    async def asked(pilot) -> None:
        await explained(pilot)
        await pilot.press("question_mark")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=asked)
