"""`kvrewind open`: the app."""

from __future__ import annotations

import sys
from pathlib import Path

from ...recorder.errors import BadInput
from ...recorder.reader import TraceReader
from ..app import KvrewindApp


def open_trace(trace: Path, position: str | None = None, /) -> int:
    """Step through a trace in the terminal.

    Example:

        kvrewind open leak.kvtrace 2:39

    Parameters
    ----------
    trace
        A .kvtrace file.
    position
        Where to begin, as `step:seq`; the culprit of the first finding when not given.
    """
    with TraceReader(trace) as reader:
        if position is not None:
            reader.position(position)
        if not sys.stdout.isatty():
            raise BadInput(
                f"the app needs a terminal; in one, run: kvrewind open {trace} {position or ''}"
            )
        KvrewindApp(reader, position=position).run()
    return 0
