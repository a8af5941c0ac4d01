"""The one place that decides where a new trace goes."""

from __future__ import annotations

from .address import Place, RunAddress, place_of
from .base import Store
from .database import DatabaseRun
from .sqlite_file import SqliteFile


def create_store(target: Place | str, *, force: bool) -> Store:
    """A new trace in the file, or in the database, that `target` names.

    Raises OutputExists unless `force` is given, and BadOutput, BadStore or BadInput.
    """
    place = place_of(target)
    if isinstance(place, RunAddress):
        return DatabaseRun(place, force=force)
    return SqliteFile(place, force=force)
