"""A trace in a SQLite file of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Delete, Table
from sqlalchemy.exc import OperationalError

from .. import schema
from ..newfile import create_trace, why
from ..presence import Claim, identity_of

_GONE = "the file was removed or replaced meanwhile"

_ROWS_AT_ONCE = (256, 64, 16, 4, 1)
"""Many rows a statement. SQLite lets go of the interpreter lock at each one, and beside an engine
that computes in Python it takes milliseconds to get it back."""

_PATIENCE_S = 0.5
"""How long to wait at the end for somebody who just looks at the file."""


class SqliteFile:
    """A `Store`. Raises OutputExists if `path` exists and `force` is not given, and BadOutput."""

    remedy = "free the disk or choose another place"

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = path
        self._engine = create_trace(path, force=force)
        self._identity = identity_of(path)
        self._claim = Claim(path)
        self._connection = self._engine.connect()
        # a crash of the machine may lose the last steps, never the file's consistency
        self._connection.exec_driver_sql("PRAGMA synchronous = NORMAL")

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        at = 0
        for size in _ROWS_AT_ONCE:
            while len(rows) - at >= size:
                flat = tuple(chain.from_iterable(rows[at : at + size]))
                self._connection.exec_driver_sql(_insert_sql(table, size), flat)
                at += size

    def remove(self, statement: Delete) -> None:
        self._connection.execute(statement)

    def commit(self) -> None:
        self._require_in_place()
        self._connection.commit()

    def used_bytes(self) -> int:
        pages, free, size = (
            self._connection.exec_driver_sql(f"PRAGMA {what}").scalar_one()
            for what in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def finish(self) -> None:
        """Folds the WAL into the file, so that it can be copied, and read where nothing can be
        written. A reader that keeps it open, or a full disk, keeps it in WAL mode, which is as
        valid: all that was committed is there."""
        self._require_in_place()
        deadline = time.monotonic() + _PATIENCE_S
        while not self._folded() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _folded(self) -> bool:
        """SQLite's own patience does not extend to this."""
        try:
            self._connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
            self._connection.exec_driver_sql("PRAGMA journal_mode = DELETE")
        except OperationalError:
            return False
        return True

    def why(self, error: Exception) -> str:
        return _GONE if identity_of(self.path) != self._identity else why(error)

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()
        self._claim.release()

    def _require_in_place(self) -> None:
        """SQLite would go on writing into a file that has no name any more."""
        if identity_of(self.path) != self._identity:
            raise FileNotFoundError(_GONE)


@cache
def _insert_sql(table: Table, rows: int) -> str:
    return schema.insert_sql(table, rows)
