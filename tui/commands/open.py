"""`kvrewind open`: the app."""

from __future__ import annotations

import shlex
import sys

from ...recorder.errors import BadInput
from ...recorder.reader import TraceReader
from ..app import KvrewindApp
from ..options import Trace


def open_trace(trace: Trace, position: str | None = None, /) -> int:
    """Step through a trace in the terminal.

    For example:

        kvrewind open leak.kvtrace 2:39

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    position
        Where to begin: `step:seq`, an event number, or `step:` for the start of a step; the
        culprit of the first finding when not given.
    """
    with TraceReader(trace) as reader:
        app = KvrewindApp(reader, position=position)
        if not sys.stdout.isatty():
            command = shlex.join(
                ["kvrewind", "open", str(trace), *([position] if position else [])]
            )
            raise BadInput(f"the app needs a terminal; run this in one: {command}")
        app.run()
    return 0
