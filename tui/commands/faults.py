"""`kvrewind faults`: what can be planted."""

from __future__ import annotations

from rich.table import Table

from ...engine.faults.registry import FAULTS
from ..console import out, print_json
from ..options import Format


def faults(*, format: Format = "text") -> int:
    """List the faults that `record --fault NAME` plants.

    For example:

        kvrewind faults

    Parameters
    ----------
    format
        text, or json: one JSON value and nothing else.
    """
    if format == "json":
        print_json(
            [
                {
                    "name": f.name,
                    "class": f.fault_class,
                    "check": f.check,
                    "outcome": f.outcome,
                    "needs": f.needs,
                    "what": f.what,
                    "seen_in": f.seen_in,
                }
                for f in FAULTS
            ]
        )
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "class", "caught by", "outcome", "what", "needs"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "class"))
    for f in FAULTS:
        table.add_row(f.name, f.fault_class, f.check, f.outcome, f.what, f.needs)
    out().print(table, markup=False)
    return 0
