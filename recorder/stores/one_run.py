"""Statements about the tables of a file, said of one run in a database."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from sqlalchemy import Column, Select, Subquery, Table, select
from sqlalchemy.sql.visitors import ExternallyTraversible, replacement_traverse

from .. import schema
from .tables import twin

_Statement = TypeVar("_Statement", bound=ExternallyTraversible)


class OneRun:
    """Rewrites queries: every table of `schema` becomes the run's rows of its twin.

    With `last_seq`, later events and steps are not there.
    """

    def __init__(self, number: int, last_seq: int | None = None) -> None:
        self._parts = {
            table: _part_of(table, number, last_seq) for table in schema.metadata.sorted_tables
        }

    def query(self, statement: Select[Any]) -> Select[Any]:
        return of_run(statement, self._parts)


def of_run(statement: _Statement, parts: dict[Table, Subquery] | None) -> _Statement:
    """With the tables and columns of `schema` replaced: by parts, else by their twins."""

    def replaced(element: Any, **_: Any) -> Any:
        if isinstance(element, Table) and element.metadata is schema.metadata:
            return twin(element) if parts is None else parts[element]
        if isinstance(element, Column) and element.table.metadata is schema.metadata:
            table = element.table
            return (twin(table) if parts is None else parts[table]).c[element.name]
        return None

    return cast(_Statement, replacement_traverse(statement, {}, replaced))


def _part_of(table: Table, number: int, last_seq: int | None) -> Subquery:
    copied = twin(table)
    rows = select(*(copied.c[column.name] for column in table.columns)).where(
        copied.c.run == number
    )
    if last_seq is not None:
        for name in ("seq", "last_seq"):
            if name in table.c:
                rows = rows.where(copied.c[name] <= last_seq)
                break
    return rows.subquery(table.name)
