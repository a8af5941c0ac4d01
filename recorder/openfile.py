"""Opens a trace file read-only, in whatever state it is found.

Finished, beside a live writer, left by a killed one, in a directory where nothing can be written,
or damaged: in the last case its readable beginning is copied into a temporary database, so that
every question works the same.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, QueuePool, Row, Select, StaticPool, create_engine
from sqlalchemy.exc import DatabaseError

from . import schema
from .errors import MissingTrace, NewerFormat, NotATrace, UnreadableTrace
from .events import STAYS, SpanDropped
from .presence import identity_of
from .salvage import HEADER_SIZE, FileHeader, StoredRow, read_header, table_rows


class OpenTrace:
    """The database behind a reader. `damage` says how far a damaged file could be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._identity = identity_of(path)
        head = _recognise(path)
        self.format = head.user_version
        if _is_cut(path, head):
            self._engine = self._salvaged("the file is cut short")
        else:
            self._engine = self._opened()

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def close(self) -> None:
        self._engine.dispose()
        if self._copy is not None:
            self._copy.cleanup()

    def rest(self) -> None:
        """Close what connections to the file are idle; the next question opens another."""
        if self.damage is None:
            self._engine.dispose()

    def rows(self, query: Select[Any], at_a_time: int = 2_000) -> Iterator[Row[Any]]:
        """Rows of a query, fetched as they are asked for. Raises UnreadableTrace at damage.

        There are none for a value that no trace can hold (beyond 64 bits, half a surrogate).
        """
        try:
            with self._engine.connect() as connection:
                yield from connection.execution_options(yield_per=at_a_time).execute(query)
        except (DatabaseError, UnicodeDecodeError) as error:
            raise _unreadable(self.path, error) from error
        except (OverflowError, UnicodeEncodeError):
            return

    def scalar(self, query: Select[Any]) -> Any:
        """The first column of the first row, or None."""
        for row in self.rows(query, 1):
            return row[0]
        return None

    def fall_back(self, why: str, before: int | None = None) -> None:
        """Go on with what can be trusted, below seq `before`, after damage was met."""
        _require_in_place(self.path, self._identity)
        engine = self._salvaged(why, before)
        self._engine.dispose()
        self._engine = engine

    def _opened(self) -> Engine:
        engine = _read_only(self.path)
        try:
            _probe(engine, self.format)
            return engine
        except DatabaseError as error:
            engine.dispose()
            if _is_locked(error):
                raise _unreadable(self.path, error) from error
            if not _is_damage(error):
                return self._opened_copy()
            return self._salvaged("the file is damaged")
        except UnicodeDecodeError:  # a damaged schema, which SQLite quotes in its message
            engine.dispose()
            return self._salvaged("the file is damaged")

    def _opened_copy(self) -> Engine:
        """What a killed writer left beside the file can't be used where nothing can be written."""
        self._copy = tempfile.TemporaryDirectory(prefix="kvrewind-")
        try:
            copy = _copied(self.path, Path(self._copy.name))
            engine = _engine(lambda: sqlite3.connect(copy, check_same_thread=False))
            _probe(engine, self.format)
            return engine
        except (DatabaseError, OSError, UnicodeDecodeError) as error:
            raise _unreadable(self.path, error) from error

    def _salvaged(self, what: str, before: int | None = None) -> Engine:
        connection = sqlite3.connect("", check_same_thread=False)
        try:
            with _folded(self.path) as whole:
                last_seq, step = _copy_readable(whole, connection, before)
        except (OSError, ValueError) as error:
            connection.close()
            raise UnreadableTrace(
                f"{self.path} can't be read: {what}, down to its header; copy the whole file "
                "again, or record again"
            ) from error
        if last_seq is None:
            connection.close()
            raise UnreadableTrace(
                f"{self.path} can't be read: {what}, and no event is left before the damage; "
                "copy the whole file again, or record again"
            )
        self.damage = f"{what}: read up to seq {last_seq}, in step {step}"
        return _engine_of_one(connection)


# --- recognise ------------------------------------------------------------------------------------


def _recognise(path: Path) -> FileHeader:
    data = _first_bytes(path)
    if not data:
        raise NotATrace(path, "the file is empty")
    header = read_header(data)
    if header is None and len(data) < HEADER_SIZE and data.startswith(b"SQLite format 3\0"):
        raise UnreadableTrace(
            f"{path} is cut so short that not even its header is whole; copy the file again"
        )
    if header is None:
        raise NotATrace(path, "it is not a SQLite database")
    if header.application_id != schema.APPLICATION_ID or header.user_version < 1:
        raise NotATrace(path, "it is a SQLite database of another program")
    if header.user_version > schema.FORMAT_VERSION:
        raise NewerFormat(path, header.user_version, schema.FORMAT_VERSION)
    return header


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEADER_SIZE)
    except FileNotFoundError:
        raise MissingTrace(path) from None
    except IsADirectoryError:
        raise NotATrace(path, "it is a directory") from None
    except OSError as error:
        raise UnreadableTrace(
            f"{path} can't be read: {(error.strerror or str(error)).lower()}; "
            "check its permissions, or copy it to where you can read it"
        ) from error


def _is_cut(path: Path, header: FileHeader) -> bool:
    """Shorter than its header says, and no WAL that may hold the rest."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > 0:
        return False
    return path.stat().st_size < header.size


# --- open -----------------------------------------------------------------------------------------


def _read_only(path: Path) -> Engine:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    identity = identity_of(path)

    def connect() -> sqlite3.Connection:
        _require_in_place(path, identity)
        return sqlite3.connect(uri, uri=True, check_same_thread=False)

    return _engine(connect)


def _require_in_place(path: Path, identity: object) -> None:
    if identity_of(path) != identity:
        raise UnreadableTrace(
            f"{path} was removed or replaced while it was open; open what is there now"
        )


def _engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    return create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        max_overflow=-1,  # one connection per iterator that is under way
        pool_reset_on_return=None,
    )


def _engine_of_one(connection: sqlite3.Connection) -> Engine:
    return create_engine(
        "sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )


def _probe(engine: Engine, version: int) -> None:
    with engine.connect() as connection:
        for table in schema.tables_of(version):
            connection.execute(table.select().limit(1)).all()


_SIGNS_OF_DAMAGE = ("malformed", "not a database", "no such table", "no such column", "corrupt")


def _is_damage(error: DatabaseError) -> bool:
    text = str(error.orig)
    return any(word in text for word in _SIGNS_OF_DAMAGE)


def _is_locked(error: DatabaseError) -> bool:
    return "locked" in str(error.orig)


def _unreadable(path: Path, error: Exception) -> UnreadableTrace:
    if isinstance(error, DatabaseError) and _is_locked(error):
        return UnreadableTrace(f"{path} is locked by another program; close it and try again")
    why = getattr(error, "orig", None) or error
    return UnreadableTrace(
        f"{path} can't be read on ({why}); `kvrewind info` tells how far it can be trusted"
    )


# --- salvage --------------------------------------------------------------------------------------


def _copied(path: Path, folder: Path) -> Path:
    copy = folder / "copy.kvtrace"
    for suffix in ("", "-wal", "-journal"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copyfile(source, copy.with_name(copy.name + suffix))
    return copy


@contextmanager
def _folded(path: Path) -> Iterator[Path]:
    """The file with its WAL folded in: a copy, if there is a WAL and SQLite can still use it."""
    if not path.with_name(path.name + "-wal").exists():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="kvrewind-") as folder:
        copy = _copied(path, Path(folder))
        connection = sqlite3.connect(copy)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            whole = copy
        except sqlite3.DatabaseError:  # then the file without its WAL is what there is
            whole = path
        finally:
            connection.close()
        yield whole


def _copy_readable(
    path: Path, target: sqlite3.Connection, before: int | None
) -> tuple[int | None, int]:
    """Fills `target` with the trustworthy beginning; its last seq, None if empty, and step."""
    schema.metadata.create_all(_engine_of_one(target))
    for row in table_rows(path):
        table, values = _belongs(row)
        if table is not None:
            marks = ", ".join("?" * len(values))
            target.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", values)
    if before is not None:
        target.execute("DELETE FROM events WHERE seq >= ?", (before,))
    last_seq, step = _trustworthy(target)
    if last_seq is not None:
        target.execute("DELETE FROM events WHERE seq > ?", (last_seq,))
        target.execute("DELETE FROM steps WHERE last_seq > ?", (last_seq,))
    target.commit()
    return last_seq, step


def _belongs(row: StoredRow) -> tuple[str | None, tuple[Any, ...]]:
    """The table that a row of this shape is from; an integer primary key is the rowid."""
    types = tuple(type(value) for value in row.values)
    if len(types) == 8 and types[1:5] == (int, int, int, str) and types[7] is bytes:
        return "events", (row.rowid, *row.values[1:])
    if len(types) == 4 and types[1:] == (int, bytes, bytes):
        return "steps", (row.rowid, *row.values[1:])
    if types == (str, str):
        return "header", row.values
    if len(types) == 2 and types[1] is str:
        return "names", (row.rowid, row.values[1])
    return None, ()


def _trustworthy(target: sqlite3.Connection) -> tuple[int | None, int]:
    """The end of the unbroken beginning, back to the end of a step if there is one."""
    ends = dict(target.execute("SELECT last_seq, step FROM steps"))
    whole: tuple[int | None, int] = (None, 0)
    seq, step = -1, 0
    (marked,) = target.execute(
        "SELECT min(seq) FROM events WHERE kind = ?", (SpanDropped.__name__,)
    ).fetchone()
    for next_seq, next_step, kind in target.execute(
        "SELECT seq, step, kind FROM events ORDER BY seq"
    ):
        is_behind_gap = next_seq != seq + 1
        stayed = kind in STAYS and marked is not None and next_seq < marked
        if is_behind_gap and not stayed and kind != SpanDropped.__name__:
            break
        if seq >= 0 and next_step > step:
            whole = (seq, step)
        seq, step = next_seq, max(step, next_step)
    if seq in ends or (whole[0] is None and seq >= 0):
        return seq, step
    return whole
