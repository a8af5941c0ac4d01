"""A run in a database, read: what `OpenTrace` is for a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlalchemy import Engine, NullPool, QueuePool, Row, Select, func, inspect, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from .. import schema
from ..errors import BadInput, NewerFormat, UnreadableTrace
from .address import RunAddress
from .connection import BadStore, connected, reason, require_there
from .one_run import OneRun
from .tables import runs, twin


@dataclass(frozen=True, slots=True)
class RunEntry:
    """What a database says of one of its runs. Times are ISO 8601, UTC."""

    name: str
    host: str
    started: str
    last_commit: str
    steps: int
    last_seq: int | None
    complete: bool


class StoredRun:
    """The rows of one run. `damage` says how far it can be trusted, where not to its end.

    Raises BadInput if the database has no such run, or several and none is named, BadStore if it
    is no store of ours or out of reach, and NewerFormat.
    """

    def __init__(self, address: RunAddress) -> None:
        require_there(address)
        self._engine = connected(address, QueuePool)
        self.damage: str | None = None
        self.path = address
        try:
            self.path, self._number, self.format = _chosen(self._engine, address)
        except BaseException:
            self._engine.dispose()
            raise
        self._run = OneRun(self._number)

    @property
    def size(self) -> int:
        return self.scalar(select(func.sum(func.length(schema.events.c.payload)))) or 0

    def close(self) -> None:
        self._engine.dispose()

    def rest(self) -> None:
        self._engine.dispose()

    def rows(self, query: Select[Any], at_a_time: int = 2_000) -> Iterator[Row[Any]]:
        """Rows of a query about the tables of `schema`, fetched as they are asked for.

        Raises UnreadableTrace. There are none for a value that no trace can hold.
        """
        try:
            with self._engine.connect() as connection:
                limited = connection.execution_options(yield_per=at_a_time)
                yield from limited.execute(self._run.query(query))
        except SQLAlchemyError as error:
            self._stop(error)
        except (OverflowError, UnicodeEncodeError):
            return

    def scalar(self, query: Select[Any]) -> Any:
        """The first column of the first row, or None."""
        for row in self.rows(query, 1):
            return row[0]
        return None

    def fall_back(self, why: str, before: int | None = None) -> None:
        """Go on with whole steps below seq `before`, after a bad event was met."""
        if before is None:
            raise UnreadableTrace(f"{self.path} can't be read on: {why}")
        steps = schema.steps.c
        whole: Select[Any] = select(schema.steps).where(steps.last_seq < before)
        for row in self.rows(whole.order_by(steps.last_seq.desc()).limit(1)):
            self._run = OneRun(self._number, row.last_seq)
            self.damage = f"{why}: read up to seq {row.last_seq}, in step {row.step}"
            return
        raise UnreadableTrace(f"{self.path} can't be read: {why}, and no whole step is before it")

    def _stop(self, error: SQLAlchemyError) -> NoReturn:
        raise UnreadableTrace(
            f"{self.path} can't be read on ({reason(error, self.path)}); see to the database"
        ) from None


def list_runs(address: RunAddress) -> list[RunEntry]:
    """The runs of a database, the oldest first. Raises BadStore."""
    require_there(address)
    engine = connected(address, NullPool)
    events, steps, header = twin(schema.events), twin(schema.steps), twin(schema.header)
    closed = select(steps.c.run, func.max(steps.c.step).label("steps")).group_by(steps.c.run)
    ends = closed.subquery()
    last = select(func.max(events.c.seq)).where(events.c.run == runs.c.run).scalar_subquery()
    complete = select(header.c.run).where(header.c.key == "complete").subquery()
    query = (
        select(runs.c.name, runs.c.host, runs.c.started, runs.c.last_commit, ends.c.steps, last,
               complete.c.run.is_not(None))
        .outerjoin(ends, ends.c.run == runs.c.run)
        .outerjoin(complete, complete.c.run == runs.c.run)
        .order_by(runs.c.run)
    )  # fmt: skip
    try:
        _require_store(engine, address)
        with engine.connect() as connection:
            return [
                RunEntry(name, host, started, commit, steps or 0, seq, bool(whole))
                for name, host, started, commit, steps, seq, whole in connection.execute(query)
            ]
    except DBAPIError as error:
        raise BadStore(address, reason(error, address)) from None
    finally:
        engine.dispose()


def _chosen(engine: Engine, address: RunAddress) -> tuple[RunAddress, int, int]:
    try:
        _require_store(engine, address)
        query = select(runs.c.name, runs.c.run, runs.c.format).order_by(runs.c.run.desc())
        if address.run is not None:
            query = query.where(runs.c.name == address.run)
        with engine.connect() as connection:
            found = connection.execute(query.limit(2)).all()
    except SQLAlchemyError as error:
        raise BadStore(address, reason(error, address)) from None
    if len(found) != 1:
        raise BadInput(_choose(address, [row.name for row in found]))
    name, number, version = found[0]
    if version > schema.FORMAT_VERSION:
        raise NewerFormat(str(address), version, schema.FORMAT_VERSION)
    return address.of_run(name), number, version


def _choose(address: RunAddress, newest: list[str]) -> str:
    listing = "`kvrewind runs URL` lists what there is"
    if address.run is not None:
        return f"{address}: the database has no run of that name; {listing}"
    if not newest:
        return f"{address} holds no run yet; record one with `kvrewind record --store URL`"
    return f"{address} holds several runs, {newest[0]} the newest; name one with run=, {listing}"


def _require_store(engine: Engine, address: RunAddress) -> None:
    if not inspect(engine).has_table(runs.name):
        raise BadStore(
            address,
            "it holds no runs of kvrewind (a single trace file is opened by its path); "
            "record one with `kvrewind record --store URL`",
        )
