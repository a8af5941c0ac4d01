"""Creates the file of a trace: empty tables under the name asked for, or nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from sqlalchemy import Engine, NullPool, StaticPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from . import schema
from .errors import BadOutput, OutputExists
from .events import CONTRACT_VERSION


def create_trace(path: Path, *, force: bool) -> Engine:
    """The empty trace appears under its name at once and whole, so that a kill at any moment
    leaves either nothing or a trace; and exclusively, so that of two writers one is refused.

    Raises OutputExists, unless `force` is given, and BadOutput.
    """
    if not force and path.exists():
        raise OutputExists(path)
    if path.exists() and not path.is_file():  # renaming a file onto a device would take it away
        raise BadOutput(path, "it is there already, and is no file")
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}.new")
    try:
        draft.touch(exist_ok=False)  # whose error says more than SQLite's
        _create_tables(draft)
        if force:
            _remove_side_files(path)
            draft.replace(path)
        else:
            if not path.exists():
                _remove_side_files(path)
            _name_exclusively(draft, path)
    except FileExistsError:
        raise OutputExists(path) from None
    except (OSError, SQLAlchemyError) as error:
        raise BadOutput(path, why(error)) from error
    finally:
        with contextlib.suppress(OSError):  # nothing to remove where nothing could be created
            draft.unlink(missing_ok=True)
    return _opened(path)


def _opened(path: Path) -> Engine:
    """One connection, open from now on: opened later, it could meet another file of that name."""
    uri = f"file:{quote(str(path.absolute()))}?mode=rw"
    try:
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        connection.execute("SELECT count(*) FROM events")  # opens the WAL too
    except sqlite3.Error as error:
        raise BadOutput(path, why(error)) from error
    return create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)


def _name_exclusively(draft: Path, path: Path) -> None:
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: reserve the name, then replace
        path.touch(exist_ok=False)
        draft.replace(path)


def _remove_side_files(path: Path) -> None:
    """What a killed writer left of the old trace would be taken for part of the new one."""
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _create_tables(path: Path) -> None:
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(path), poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = MEMORY")  # a draft may be lost
        connection.exec_driver_sql("PRAGMA synchronous = OFF")
        connection.exec_driver_sql(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {schema.FORMAT_VERSION}")
        schema.metadata.create_all(connection)
        connection.exec_driver_sql(
            schema.insert_sql(schema.header),
            [
                ("contract", str(CONTRACT_VERSION)),
                ("writer", f"kvrewind {version('kvrewind')}"),
            ],
        )
        connection.commit()
        # only now: until the first checkpoint everything is in the WAL, and a main file that
        # already names itself can be recognised without it
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def why(error: Exception) -> str:
    """What the system or SQLite says about an error, without the wrapping."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    original = getattr(error, "orig", None) or error
    return str(original) or type(original).__name__
