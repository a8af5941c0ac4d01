"""A trace as one run among others, in any database that SQLAlchemy knows."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from sqlalchemy import (
    Connection,
    Delete,
    Engine,
    NullPool,
    Table,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from .. import schema
from ..errors import OutputExists
from ..events import CONTRACT_VERSION
from . import tables
from .address import RunAddress
from .connection import BadStore, connected, reason
from .one_run import of_run
from .tables import runs, twin

_TRIES = 3
"""Of several processes that make the tables of a new database at once, all but one fail."""


_OF_A_ROW = 100
"""Bytes of an event's row and of its entries in indexes, apart from its payload: about."""


class DatabaseRun:
    """A `Store`: a new run in the database, under a name of its own.

    Raises OutputExists if the database has a run of that name and `force` is not given, and
    BadStore if it can't be reached or written. A run without a name is given one.
    """

    remedy = "see to the database, or choose another"

    def __init__(self, address: RunAddress, *, force: bool) -> None:
        self.path = address.of_run(address.run or _unused_name())
        self._is_marked = False
        self._engine = connected(address, NullPool)
        try:
            _prepare(self._engine, self.path)
            self._number = self._entered(force=force)
            self._connection = self._engine.connect()
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise BadStore(self.path, self.why(error)) from None
        except BaseException:
            self._engine.dispose()
            raise

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        self._require_in_place()
        numbered = [(self._number, *row) for row in rows]
        if self._engine.dialect.driver == "psycopg":
            _copy_in(self._connection, twin(table), numbered)
        else:
            names = [column.name for column in twin(table).columns]
            values = [dict(zip(names, row, strict=True)) for row in numbered]
            self._connection.execute(insert(twin(table)), values)

    def remove(self, statement: Delete) -> None:
        self._require_in_place()
        table = statement.table
        assert isinstance(table, Table)
        own = delete(twin(table)).where(twin(table).c.run == self._number)
        if statement.whereclause is not None:
            own = own.where(of_run(statement.whereclause, None))
        self._connection.execute(own)

    def commit(self) -> None:
        self._connection.commit()
        self._is_marked = False

    def used_bytes(self) -> int:
        """Of the events, about: what a database takes for them, it takes for all runs together."""
        of = twin(schema.events).c
        size = func.coalesce(func.sum(func.length(of.payload) + _OF_A_ROW), 0)
        return int(
            self._connection.execute(select(size).where(of.run == self._number)).scalar_one()
        )

    def finish(self) -> None:
        """A database needs nothing."""

    def why(self, error: Exception) -> str:
        return reason(error, self.path)

    def close(self) -> None:
        try:
            self._connection.close()
        except SQLAlchemyError:  # it was lost, and there is nothing left to close
            self._connection.invalidate()
        self._engine.dispose()

    def _entered(self, *, force: bool) -> int:
        """The number of the new run; one that is replaced goes in the same transaction."""
        name, now = self.path.run, _now()
        entry = {
            "name": name,
            "format": schema.FORMAT_VERSION,
            "writer": f"kvrewind {version('kvrewind')}",
            "host": platform.node(),
            "started": now,
            "last_commit": now,
        }
        try:
            with self._engine.begin() as connection:
                if force:
                    _remove_run(connection, str(name))
                number = connection.scalars(insert(runs).returning(runs.c.run), entry).one()
                facts = (("contract", str(CONTRACT_VERSION)), ("writer", entry["writer"]))
                of_header = [{"run": number, "key": key, "value": value} for key, value in facts]
                connection.execute(insert(twin(schema.header)), of_header)
        except IntegrityError:
            raise OutputExists(str(self.path)) from None
        return number

    def _require_in_place(self) -> None:
        """Marks the run as being written; until the commit nobody can replace it."""
        if self._is_marked:
            return
        mark = update(runs).where(runs.c.run == self._number).values(last_commit=_now())
        if self._connection.execute(mark).rowcount != 1:
            raise LookupError("the run was removed or replaced meanwhile")
        self._is_marked = True


def _prepare(engine: Engine, address: RunAddress) -> None:
    """Makes the tables that are lacking, and none where one of their names is taken."""
    _require_ours(engine, address)
    for attempt in range(_TRIES):
        try:
            tables.metadata.create_all(engine)
            break
        except SQLAlchemyError:
            if attempt == _TRIES - 1:
                raise
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def _require_ours(engine: Engine, address: RunAddress) -> None:
    found = inspect(engine)
    taken = set(found.get_table_names())
    for table in tables.metadata.sorted_tables:
        if table.name not in taken:
            continue
        columns = {column["name"] for column in found.get_columns(table.name)}
        if {column.name for column in table.columns} - columns:
            raise BadStore(
                address,
                f"its table {table.name} is another program's or an older kvrewind's; "
                "choose another database or schema",
            )


def _remove_run(connection: Connection, name: str) -> None:
    number = connection.scalar(select(runs.c.run).where(runs.c.name == name))
    if number is None:
        return
    connection.execute(delete(runs).where(runs.c.run == number))
    for table in schema.metadata.sorted_tables:
        connection.execute(delete(twin(table)).where(twin(table).c.run == number))


def _copy_in(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """PostgreSQL's COPY: one round trip for all rows."""
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    driver: Any = connection.connection.driver_connection
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(row)


def _unused_name() -> str:
    """Of host, time and chance, so that a fleet needs no arrangement."""
    host = platform.node() or "run"
    return f"{host}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
