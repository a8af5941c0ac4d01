"""A trace as a Parquet table: one row an event, for DuckDB, pandas and whatever reads Arrow.

Fields that questions are asked about have columns of their own; all others are one JSON object in
`fields`, as in the JSON lines. Together they are the event: nothing is left out, nothing is there
twice, but for a key that is no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from types import ModuleType
from typing import IO, Any, NamedTuple

from ...recorder.errors import BadInput
from ...recorder.events import CONTRACT_VERSION, Envelope, Event
from ...recorder.fields import Shape, fields_of
from ...recorder.jsonl import to_json

ROWS_AT_A_TIME = 16_384


class Column(NamedTuple):
    """A field with a column of its own, in the events that have it in this shape."""

    name: str
    shape: Shape


COLUMNS: tuple[Column, ...] = (
    Column("request", "str"),
    Column("block", "int"),
    Column("group", "int"),
    Column("index", "int"),
    Column("ref_count", "int"),
    Column("key", "scalar"),
    Column("decision", "str"),
    Column("reason", "str"),
    Column("requests", "rows"),
    Column("tokens", "ints"),
    Column("positions", "ints"),
    Column("slots", "ints"),
    Column("computed", "ints"),
    Column("scheduled", "ints"),
    Column("query_lens", "ints"),
    Column("seq_lens", "ints"),
    Column("slot_mapping", "ints"),
    Column("block_tables", "table"),
)
ENVELOPE = ("seq", "step", "t_ns", "rank", "kind")
REST = "fields"


def write_parquet(envelopes: Iterable[Envelope], stream: IO[bytes]) -> int:
    """Write the table; the number of rows. Raises BadInput where pyarrow isn't installed."""
    pa = _pyarrow()
    import pyarrow.parquet as pq

    schema = schema_of(pa)
    count = 0
    rows = iter(envelopes)
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        while batch := list(islice(rows, ROWS_AT_A_TIME)):
            writer.write_batch(pa.record_batch(_arrays(pa, schema, batch), schema=schema))
            count += len(batch)
    return count


def schema_of(pa: ModuleType) -> Any:
    """The Arrow schema: envelope, columns, and the rest as JSON."""
    ints = pa.list_(pa.int64())
    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "scalar": pa.string(),
        "rows": pa.list_(pa.string()),
        "ints": ints,
        "table": pa.list_(ints),
    }
    word = pa.dictionary(pa.int8(), pa.string())
    fields = [
        *(pa.field(name, pa.int64(), nullable=False) for name in ENVELOPE[:3]),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("kind", word, nullable=False),
        *(pa.field(column.name, types[column.shape]) for column in COLUMNS),
        pa.field(REST, pa.string(), nullable=False),
    ]
    return pa.schema(fields, metadata={"kvrewind_contract": str(CONTRACT_VERSION)})


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError:
        raise BadInput(
            "Parquet needs pyarrow, which isn't installed; "
            'install it with pip install "kvrewind[parquet]", or export to jsonl'
        ) from None
    return pyarrow


def _arrays(pa: ModuleType, schema: Any, batch: list[Envelope]) -> list[Any]:
    values: dict[str, list[Any]] = {name: [] for name in schema.names}
    for row in map(_row, batch):
        for name, value in row:
            values[name].append(value)
    return [pa.array(values[field.name], type=field.type) for field in schema]


def _row(envelope: Envelope) -> Iterator[tuple[str, Any]]:
    event = envelope.event
    yield from zip(ENVELOPE, (*envelope[:4], envelope.kind), strict=True)
    rest = to_json(event)
    own = _own_columns(type(event))
    for column in COLUMNS:
        value = None
        if column.name in own:
            value = rest.get(column.name)
            if isinstance(value, int) and column.shape == "scalar":
                value = str(value)  # whether it was a number stays in the rest
            else:
                rest.pop(column.name, None)
        yield column.name, value
    yield REST, json.dumps(rest, separators=(",", ":"))


@cache
def _own_columns(cls: type[Event]) -> frozenset[str]:
    """The columns that this kind of event fills."""
    shapes = {spec.name: "rows" if spec.shape == "names" else spec.shape for spec in fields_of(cls)}
    return frozenset(c.name for c in COLUMNS if shapes.get(c.name) == c.shape)
