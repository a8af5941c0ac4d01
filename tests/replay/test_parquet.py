"""A trace as a Parquet table: typed columns, and with the rest in JSON the whole event."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from kvrewind.recorder.events import (
    EVENTS,
    BlockCopied,
    BlockShared,
    Envelope,
    Event,
    GraphReplayed,
    RequestForked,
    StepDispatched,
    TokensSampled,
)
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.replay.exports import parquet
from kvrewind.replay.exports.parquet import COLUMNS, write_parquet
from recorded import recorded
from strategies import traces

pytest.importorskip("pyarrow", reason='needs the extra: pip install "kvrewind[parquet]"')
pq = pytest.importorskip("pyarrow.parquet")

LEAK = recorded("key-length-only")


def table_of(envelopes: Iterable[Envelope]) -> Any:
    stream = io.BytesIO()
    write_parquet(envelopes, stream)
    stream.seek(0)
    return pq.read_table(stream)


def event_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a JSON line again."""
    rest = json.loads(row.pop("fields"))
    return {name: value for name, value in row.items() if value is not None} | rest


def read_back(table: Any) -> list[Envelope]:
    lines = [json.dumps(event_of(row)) for row in table.to_pylist()]
    return list(read_jsonl(io.StringIO("\n".join(lines)), "rows"))


@given(traces(max_size=20))
@settings(max_examples=25)
def test_a_row_is_the_whole_event(envelopes: list[Envelope]) -> None:
    assert read_back(table_of(envelopes)) == envelopes


def test_so_it_is_with_big_keys_odd_floats_and_fields_that_nobody_knows() -> None:
    events: list[Event] = [
        BlockShared(block=1, request="a", index=0, ref_count=2, key=-(2**300), decision="d"),
        StepDispatched(unknown={"block": "seven", "tokens": [1.5, None], "key": True}),
        TokensSampled(
            requests=("a",), tokens=(-(2**63),), positions=(1,), rows=(0,), logprobs=(-math.inf,)
        ),
        RequestForked(request="b", parent="a", tokens=5),
        BlockCopied(source=1, destination=2, slots=3),
        GraphReplayed(buffer="b", stamp=1, stride=4, rows=None),
    ]
    envelopes = [Envelope(3 * n, n, 2**62, n, event) for n, event in enumerate(events)]
    assert read_back(table_of(envelopes)) == envelopes


def test_a_recorded_run_has_a_row_an_event_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_AT_A_TIME", 100)
    table = table_of(LEAK)
    assert table.num_rows == len(LEAK)
    assert table["seq"].to_pylist() == [e.seq for e in LEAK]
    assert table["kind"].to_pylist() == [e.kind for e in LEAK]
    assert table["t_ns"].to_pylist() == [e.t_ns for e in LEAK]


def test_what_is_asked_about_has_a_typed_column() -> None:
    table = table_of(LEAK)
    types = {field.name: str(field.type) for field in table.schema}
    assert types["seq"] == types["block"] == "int64"
    assert types["tokens"].startswith("list<") and types["tokens"].endswith("int64>")
    shares = [r for r in table.to_pylist() if r["kind"] == "BlockShared" and r["block"] == 2]
    assert [r["request"] for r in shares][:3] == ["r1", "r2", "r3"]
    assert shares[0]["ref_count"] == 2


def test_a_number_as_a_key_is_text_in_the_column_and_a_number_in_the_rest() -> None:
    event = BlockShared(block=1, request="a", index=0, ref_count=2, key=2**200)
    (row,) = table_of([Envelope(0, 1, 0, 0, event)]).to_pylist()
    assert row["key"] == str(2**200)
    assert json.loads(row["fields"]) == {"key": 2**200}


def test_absent_fields_are_null() -> None:
    (row,) = table_of([Envelope(7, 3, 5, 1, StepDispatched())]).to_pylist()
    assert {name for name, value in row.items() if value is not None} == {
        "seq", "step", "t_ns", "rank", "kind", "fields",
    }  # fmt: skip


def test_an_empty_trace_is_an_empty_table() -> None:
    assert table_of([]).num_rows == 0


def test_every_column_is_a_field_of_some_event() -> None:
    filled = {name for cls in EVENTS for name in parquet._own_columns(cls)}
    assert filled == {column.name for column in COLUMNS}
