"""`kvrewind runs`: what a database holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from ...recorder.errors import BadInput
from ...recorder.stores.address import RunAddress, place_of
from ...recorder.stores.stored_run import RunEntry, list_runs
from ..console import out, print_json, say
from ..options import Format


def runs(url: Annotated[str, Parameter(name="URL")], /, *, format: Format = "text") -> int:
    """List the runs that were recorded into a database with `kvrewind record --store`.

    Any command that takes a trace opens one of them as URL?run=NAME.

    For example:

        kvrewind runs sqlite:///fleet.db

    Parameters
    ----------
    url
        An SQLAlchemy URL, as in postgresql+psycopg://user@host/database.
    format
        text, or json: one JSON value and nothing else.
    """
    address = place_of(url)
    if not isinstance(address, RunAddress):
        raise BadInput(f"{address} is no URL; write sqlite:///{address} for a SQLite database")
    entries = list_runs(address)
    if format == "json":
        print_json([asdict(entry) for entry in entries])
        return 0
    out().print(_table(entries), markup=False)
    if not entries:
        say(f"{address} holds no run yet")
    return 0


def _table(entries: list[RunEntry]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for heading in ("host", "started", "last commit", "steps", "last event", "complete"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        last = "-" if entry.last_seq is None else str(entry.last_seq)
        complete = "yes" if entry.complete else "no"
        times = (entry.started[:19], entry.last_commit[:19])
        table.add_row(entry.name, entry.host, *times, str(entry.steps), last, complete)
    return table
