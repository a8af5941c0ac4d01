"""How a trace is stored: its format, its header, and what its tables take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import column, func, select, table

from . import schema
from .errors import UnreadableTrace
from .stores.address import RunAddress
from .stores.open import OpenPlace

_PAGES: Any = table("dbstat", column("name"), column("pgsize"))
"""SQLite's own account of its pages, where it was built with one."""

_OF_A_ROW = 24
"""Bytes that the numbers of an event's row take, and its header: about."""


class TableSizes(NamedTuple):
    """Bytes. `is_measured`: as SQLite accounts for its pages; else they are worked out from what
    the rows hold, and only those of the events are known."""

    events: int
    indexes: int | None
    """Of events: per block, per request, per slot write."""
    other: int | None
    is_measured: bool


class Storage(NamedTuple):
    format: int
    sizes: TableSizes | None
    """None where they can't be told."""
    header: Mapping[str, str]
    """What the writer noted: contract, writer, complete, frozen, ..."""


def storage_of(place: OpenPlace) -> Storage:
    """Reads the header and counts pages; raises UnreadableTrace where not even those are left."""
    query: Any = select(schema.header.c.key, schema.header.c.value)
    pairs = [tuple(row) for row in place.rows(query)]
    header = {key: value for key, value in pairs if type(key) is type(value) is str}
    return Storage(place.format, _sizes(place), header)


def _sizes(place: OpenPlace) -> TableSizes | None:
    if isinstance(place.path, RunAddress):  # whose tables hold other runs too
        return TableSizes(place.size, None, None, is_measured=False)
    try:
        return _measured(place)
    except UnreadableTrace:  # no dbstat, or damage in a table that isn't needed
        pass
    try:
        return _estimated(place)
    except UnreadableTrace:
        return None


def _measured(place: OpenPlace) -> TableSizes:
    pages = _PAGES.c
    query: Any = select(pages.name, func.sum(pages.pgsize)).group_by(pages.name)
    sizes: dict[str, int] = dict(tuple(row) for row in place.rows(query))
    events = sizes.pop(schema.events.name, 0)
    own = {name for name in sizes if name.startswith("sqlite_") or name in _NO_INDEX}
    other = sum(sizes.pop(name) for name in own)
    return TableSizes(events, sum(sizes.values()), other, is_measured=True)


def _estimated(place: OpenPlace) -> TableSizes:
    events = schema.events.c
    lengths: Any = (
        func.length(events.payload)
        + func.length(events.kind)
        + func.coalesce(func.length(events.request), 0)
        + _OF_A_ROW
    )
    return TableSizes(place.scalar(select(func.sum(lengths))) or 0, None, None, is_measured=False)


_NO_INDEX = ("steps", "header", "names")
