"""docs/trace-format.md says what is in a file: its code runs, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kvrewind.recorder import schema
from kvrewind.recorder.codec import plan_of
from kvrewind.recorder.events import EVENTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 8
    monkeypatch.chdir(ROOT)
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/trace-format.md", "exec"), namespace)
    namespace["trace"].close()


def test_the_page_lists_the_fields_of_each_kind_as_they_are_stored() -> None:
    listed = dict(re.findall(r"^\| `([A-Z]\w+)` \| ([\w, ]+) \|$", PAGE, re.MULTILINE))
    stored = {cls.__name__: [spec.name for spec in plan_of(cls).fields] for cls in EVENTS}
    assert {kind: fields.split(", ") for kind, fields in listed.items()} == stored


@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=lambda table: table.name)
def test_the_page_has_the_columns_of_each_table(table: Any) -> None:
    columns = ", ".join(column.name for column in table.columns)
    assert f"| `{table.name}` | `{columns}` |" in PAGE


def test_the_page_is_about_the_version_that_is_written() -> None:
    assert f"**{schema.FORMAT_VERSION}**" in PAGE
    assert f"0x{schema.APPLICATION_ID:X}" in PAGE
