"""`kvrewind bundle`: a recording to hand over."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...recorder.errors import BadInput, BadOutput
from ...recorder.reader import TraceReader
from ...recorder.stores.address import Place
from ...recorder.stores.bundled import BUNDLED_TRACE
from ...recorder.writer import TraceWriter
from ..bundling import contents, write_zip
from ..console import say
from ..options import Trace
from ..outputs import require_output
from ..redacting import Redact, is_all_redacted, redactor_of
from .redact import write_redacted


def bundle(
    trace: Trace,
    /,
    *,
    output: Annotated[Path, Parameter(name="--out")],
    what: Redact = "tokens",
    redact_key: Path | None = None,
    clear: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Pack a trace for somebody else: redacted, with what there is to know of it.

    The zip file holds the trace, what `check` and `info` say of it, a report as a page, versions,
    and a text that says what all that is. A trace in clear is redacted on the way. Whoever gets it
    can `check`, `open`, `bisect` the zip file as it is.

    For example:

        kvrewind bundle leak.kvtrace --out leak.zip

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    output
        The zip file to write.
    what
        tokens: redact tokens, keys of blocks and text. all: also the names of requests, tenants,
        sessions and adapters.
    redact_key
        A file of at least 16 random bytes, so that several bundles have the same hashes; a random
        key, which nobody keeps, when not given.
    clear
        Leave the tokens and texts as they are.
    force
        Write over an existing file.
    """
    require_output(output, [trace], force=force)
    if clear and (redact_key is not None or what == "all"):
        raise BadInput("--clear redacts nothing; leave it out, or --what and --redact-key")
    with tempfile.TemporaryDirectory(prefix="kvrewind-") as folder:
        written, packed = Path(folder, "written.kvtrace"), Path(folder, BUNDLED_TRACE)
        problems = _copied(trace, written, what, redact_key, clear)
        _pack(written, packed)
        files = contents(packed, problems)
        _write(files, output)
    say(f"{output}: {len(files)} files, {output.stat().st_size} bytes")
    return 0


def _copied(
    trace: Place, copy: Path, what: Redact, redact_key: Path | None, clear: bool
) -> tuple[str, ...]:
    """Makes the trace that goes into the bundle; the problems of the one it is made from."""
    with TraceReader(trace) as reader:
        is_redacted = is_all_redacted(reader)
        if not clear and not is_redacted:
            redactor = redactor_of(what, redact_key)
            assert redactor is not None, "something is redacted"
            write_redacted(reader, copy, redactor)
            return tuple(map(str, reader.problems))
        if not is_redacted:
            say("note: the tokens and texts of prompts and answers go out in clear")
        for problem in reader.problems:
            say(f"{reader.path}: {problem}")
        with TraceWriter(copy) as writer:
            writer.write_envelopes(reader.envelopes())
        if writer.failure is not None:
            raise writer.failure
        return tuple(map(str, reader.problems))


def _pack(written: Path, packed: Path) -> None:
    """The same trace in pages that don't depend on when which of them was written."""
    with closing(sqlite3.connect(written)) as connection:
        connection.execute("VACUUM INTO ?", (str(packed),))


def _write(files: Mapping[str, str | Path], output: Path) -> None:
    """Under its name only once it is whole."""
    if output.exists() and not output.is_file():  # renaming a file onto a device takes it away
        raise BadOutput(output, "it is there already, and is no file")
    part = output.with_name(f"{output.name}.part")
    try:
        try:
            write_zip(files, part)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise BadOutput(output, error.strerror or str(error)) from None
