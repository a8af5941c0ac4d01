"""The tables of a database that holds many runs: those of a trace file, each with a `run` column.

`runs` gives each run its number. So what asks a file

    select * from events where block = 17

asks a database

    select * from events where run = 3 and block = 17
"""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, MetaData, Table, Text

from .. import schema

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run", Integer, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False, unique=True),
    Column("format", Integer, nullable=False),
    Column("writer", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("started", Text, nullable=False),
    Column("last_commit", Text, nullable=False),
    sqlite_autoincrement=True,  # else a run that replaces another could get its number
)
"""`format` is the trace format, as a file's user_version. Times are ISO 8601, UTC."""


def twin(table: Table) -> Table:
    """A table of `schema` as a database with many runs has it."""
    return metadata.tables[table.name]


def _add_twin(table: Table) -> None:
    columns = [
        Column(c.name, c.type, primary_key=c.primary_key, nullable=c.nullable, autoincrement=False)
        for c in table.columns
    ]
    copied = Table(
        table.name,
        metadata,
        Column("run", Integer, primary_key=True, autoincrement=False),
        *columns,
    )
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        named = [copied.c[column.name] for column in index.columns]
        given = index.columns[0].is_not(None)
        Index(index.name, copied.c.run, *named, sqlite_where=given, postgresql_where=given)


for _table in schema.metadata.sorted_tables:
    _add_twin(_table)
