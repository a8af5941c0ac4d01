"""Whether a trace is still the same file, and whether somebody is writing it just now.

Its writer holds a lock on the write-ahead log (`-wal`), which the system lets go of when the
process ends, however it ends. SQLite itself never locks that file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO


class Claim:
    """A writer's hold on a trace; where the system has no such locks, it holds nothing."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = _log_of(path).open("rb")
            _lock(self._file, exclusive=False)

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


def is_being_written(path: Path) -> bool | None:
    """Whether a process holds a claim on the trace; None where that can't be told."""
    try:
        with _log_of(path).open("rb") as log:
            return not _lock(log, exclusive=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _log_of(path: Path) -> Path:
    """It is there as long as a connection writes."""
    return path.with_name(path.name + "-wal")


def _lock(file: IO[bytes], *, exclusive: bool) -> bool:
    """Whether it could be had at once. Raises OSError where there are no such locks."""
    try:
        import fcntl
    except ImportError as error:
        raise OSError("no advisory locks on this system") from error
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def identity_of(path: Path) -> tuple[int, int] | None:
    """Of the file that the path names now; None if there is none."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
