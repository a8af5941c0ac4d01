"""The one place that decides how a trace is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from sqlalchemy import Row, Select

from ..openfile import OpenTrace
from .address import Place, RunAddress
from .bundled import BundledTrace, is_bundle
from .stored_run import StoredRun


class OpenPlace(Protocol):
    """What a reader asks of the place that it reads from."""

    @property
    def path(self) -> Place:
        """With the name of the run, where it was not given."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the file, or of what the run's events take in the database."""
        ...

    @property
    def format(self) -> int:
        """The version of the trace format."""
        ...

    @property
    def damage(self) -> str | None: ...

    def rows(self, query: Select[Any], at_a_time: int = 2_000) -> Iterator[Row[Any]]: ...

    def scalar(self, query: Select[Any]) -> Any: ...

    def fall_back(self, why: str, before: int | None = None) -> None: ...

    def rest(self) -> None:
        """Let go until the next question."""
        ...

    def close(self) -> None: ...


def open_place(place: Place) -> OpenPlace:
    """Raises what `OpenTrace`, `BundledTrace` and `StoredRun` raise."""
    if isinstance(place, RunAddress):
        return StoredRun(place)
    return BundledTrace(place) if is_bundle(place) else OpenTrace(place)
