"""`kvrewind import`: somebody else's events as a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ...recorder.events import RunEnded
from ...recorder.jsonl import read_jsonl
from ...recorder.writer import TraceWriter
from ..console import say
from ..outputs import require_output

STANDARD = Path("-")


def import_trace(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    output: Annotated[Path, Parameter(name="--out")],
    format: Literal["jsonl"] = "jsonl",
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Make a trace of somebody else's events, one JSON object a line.

    Nothing is written if a line is bad, or if its seq is not above the one before it; it is named.

    For example:

        kvrewind import events.jsonl --out events.kvtrace

    Parameters
    ----------
    file
        JSON lines as `kvrewind export` writes them; - for standard input.
    output
        The trace to write.
    format
        jsonl.
    force
        Write over an existing trace.
    """
    require_output(output, [file], force=force)
    source = getattr(sys.stdin, "buffer", sys.stdin) if file == STANDARD else file
    envelopes = list(read_jsonl(source, "standard input" if file == STANDARD else str(file)))
    with TraceWriter(output, force=force) as writer:
        writer.write_envelopes(envelopes)
    if writer.failure is not None:
        raise writer.failure
    say(f"{output}: {len(envelopes)} events")
    if not any(isinstance(envelope.event, RunEnded) for envelope in envelopes):
        say("note: there is no RunEnded among them, so the trace is incomplete, and never clean")
    return 0
