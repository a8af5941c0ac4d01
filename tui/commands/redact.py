"""`kvrewind redact`: a trace in clear, made fit to be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...recorder.errors import KvrewindError
from ...recorder.events import Event, SpanDropped
from ...recorder.reader import TraceReader
from ...recorder.redaction import Redactor
from ...recorder.writer import TraceWriter
from ...replay.redacted_state import redacted_span
from ..console import say
from ..options import Trace
from ..outputs import require_output
from ..redacting import Redact, headers_of, redactor_of


def redact(
    trace: Trace,
    /,
    *,
    output: Annotated[Path, Parameter(name="--out")],
    what: Redact = "tokens",
    redact_key: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write a trace again without its tokens and texts.

    Positions, requests and blocks stay, so that `check`, `bisect` and `replay` say the same of it.

    For example:

        kvrewind redact leak.kvtrace --out redacted.kvtrace

        kvrewind redact leak.kvtrace --what all --out nameless.kvtrace

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    output
        The trace to write.
    what
        tokens: tokens, keys of blocks and text. all: also the names of requests, tenants,
        sessions and adapters.
    redact_key
        A file of at least 16 random bytes, so that several traces have the same hashes; a random
        key, which nobody keeps, when not given.
    force
        Write over an existing trace.
    """
    redactor = redactor_of(what, redact_key)
    assert redactor is not None, "something is always redacted here"
    with TraceReader(trace) as reader:
        count = write_redacted(reader, output, redactor, force=force)
    say(f"{output}: {count} events without tokens and texts")
    return 0


def write_redacted(
    reader: TraceReader, output: Path, redactor: Redactor, *, force: bool = False
) -> int:
    """How many events were written. Raises `OutputExists`, `BadInput` and `AlreadyRedacted`."""
    require_output(output, [reader.path], force=force)
    for problem in reader.problems:
        say(f"{reader.path}: {problem}")
    for header in headers_of(reader):
        redactor.refuse_redacted(header)
    envelopes = (e._replace(event=_redacted(redactor, e.event)) for e in reader.envelopes())
    writer = TraceWriter(output, force=force)
    try:
        with writer:
            writer.write_envelopes(envelopes)
    except KvrewindError:  # of what is read: half a trace is no use
        output.unlink(missing_ok=True)
        raise
    if writer.failure is not None:
        raise writer.failure
    return writer.events


def _redacted(redactor: Redactor, event: Event) -> Event:
    if isinstance(event, SpanDropped):
        return redacted_span(redactor, event)
    return redactor.redact(event)
