"""The tables of a trace file, in SQLAlchemy Core.

A trace is SQLite, so that anyone with its shell can ask `select * from events where block = 17`.
`request` and `block` are fields of the event in columns of their own; the other fields are in
`payload` (see `codec`). `names` has the names that payloads give as numbers, `postings` which
events name a request, a block or a slot in their payloads (see `postings`). `steps` has the chained
digest of each step; a step is committed together with its row there. `header` says who
wrote the file and, at the very end, that it is complete.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
)
from sqlalchemy.dialects import sqlite

APPLICATION_ID = 0x4B565257
"""`KVRW` in the SQLite header, at byte 68; what `file` and we know a trace by."""

FORMAT_VERSION = 2
"""SQLite's user_version. A change that an older reader would misread needs a new one."""

_Big = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

events = Table(
    "events",
    metadata,
    Column("seq", _Big, primary_key=True, autoincrement=False),
    Column("step", _Big, nullable=False),
    Column("t_ns", _Big, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("request", Text),
    Column("block", _Big),
    Column("payload", LargeBinary, nullable=False),
)
Index("events_block", events.c.block, sqlite_where=events.c.block.is_not(None))
Index("events_request", events.c.request, sqlite_where=events.c.request.is_not(None))

steps = Table(
    "steps",
    metadata,
    Column("step", _Big, primary_key=True, autoincrement=False),
    Column("last_seq", _Big, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("float_digest", LargeBinary, nullable=False),
)

names = Table(
    "names",
    metadata,
    Column("id", _Big, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)

postings = Table(
    "postings",
    metadata,
    Column("what", Text, primary_key=True),
    Column("group", _Big, primary_key=True, autoincrement=False),
    Column("key", _Big, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("first_seq", _Big, primary_key=True, autoincrement=False),
    Column("last_seq", _Big, nullable=False),
    Column("seqs", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

header = Table(
    "header",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)


def tables_of(version: int) -> list[Table]:
    """Those that a trace of this format has."""
    since = {names: 2, postings: 2}
    return [table for table in metadata.sorted_tables if since.get(table, 1) <= version]


def insert_sql(table: Table, rows: int = 1) -> str:
    """One insert of that many rows with a placeholder per column: taken with tuples it is five
    times as fast as `insert()` with dicts."""
    one = str(insert(table).compile(dialect=sqlite.dialect()))
    head, values = one.split(" VALUES ")
    return f"{head} VALUES {', '.join([values] * rows)}"
