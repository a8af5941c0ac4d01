"""What the writer asks of the place that it writes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Delete, Table

from .address import Place


class Store(Protocol):
    """A new, empty trace, which one thread fills.

    `add` and `remove` are seen by readers, and survive a kill, from the next `commit` on and
    together. Each may raise whatever the database does; the writer stops then, and `why` says in a
    few words what happened, without a password that the place's name may hold.
    """

    @property
    def path(self) -> Place:
        """Where a reader finds the trace. Its text is what messages say."""
        ...

    @property
    def remedy(self) -> str:
        """What to do when it can't be written any more, before one records again."""
        ...

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows into one of the tables of `schema`, with all its columns in their order."""
        ...

    def remove(self, statement: Delete) -> None:
        """Delete rows from one of the tables of `schema`."""
        ...

    def commit(self) -> None: ...

    def used_bytes(self) -> int:
        """What the trace's rows and indexes take now, deleted ones apart."""
        ...

    def finish(self) -> None:
        """Nothing more comes: leave everything as those who copy or read it like it best."""
        ...

    def why(self, error: Exception) -> str: ...

    def close(self) -> None: ...
