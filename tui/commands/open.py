"""`kvrewind open`: the app."""

from __future__ import annotations

import shlex
import sys
import time

from ...recorder.errors import BadInput
from ...recorder.follow import LOOK_EVERY_S
from ...recorder.reader import TraceReader
from ..app import KvrewindApp
from ..console import say
from ..growth import is_live
from ..options import Trace


def open_trace(trace: Trace, position: str | None = None, /) -> int:
    """Step through a trace in the terminal; one that is being recorded is followed.

    For example:

        kvrewind open leak.kvtrace 2:39

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    position
        Where to begin: `step:seq`, an event number, or `step:` for the start of a step; the
        culprit of the first finding when not given, or the newest step of a run that goes on.
    """
    with TraceReader(trace) as reader:
        is_shown = sys.stdout.isatty()
        if is_shown:
            _await_first_step(reader)
        app = KvrewindApp(reader, position=position)
        if not is_shown:
            command = shlex.join(
                ["kvrewind", "open", str(trace), *([position] if position else [])]
            )
            raise BadInput(f"the app needs a terminal; run this in one: {command}")
        app.run()
    return 0


def _await_first_step(reader: TraceReader) -> None:
    if reader.last_seq is None and is_live(reader):
        say(f"waiting for the first step of {reader.path}")
    while reader.last_seq is None and is_live(reader):
        reader.rest()
        time.sleep(LOOK_EVERY_S)
