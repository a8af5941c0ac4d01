"""`kvrewind export`: a trace in other programs' formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Literal, TextIO, get_args

from cyclopts import Parameter

from ...recorder.errors import BadInput, BadOutput
from ...recorder.events import RequestAdded
from ...recorder.jsonl import write_jsonl
from ...recorder.reader import TraceReader
from ...recorder.stores.address import Place
from ...replay.exports.html import write_html
from ...replay.exports.parquet import write_parquet
from ...replay.exports.perfetto import write_perfetto
from ..console import say
from ..options import Trace
from ..outputs import require_output
from ..redacting import is_all_redacted

STANDARD = Path("-")

ExportFormat = Literal["jsonl", "parquet", "perfetto", "html"]


def export_trace(
    trace: Trace,
    /,
    *,
    output: Annotated[Path, Parameter(name="--out", allow_leading_hyphen=True)] = STANDARD,
    format: ExportFormat = "jsonl",
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write a trace out: every event for another program, or the whole as a picture or a page.

    jsonl is what `kvrewind import` reads; perfetto opens in ui.perfetto.dev and chrome://tracing;
    html is one file that needs no network; parquet is a row an event, for DuckDB and pandas.

    For example:

        kvrewind export leak.kvtrace --format jsonl --out leak.jsonl

        kvrewind export leak.kvtrace --format html --out leak.html

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    output
        The file to write; - for standard output.
    format
        jsonl, parquet (needs the extra parquet), perfetto or html.
    force
        Write over an existing file.
    """
    write, is_text = _WRITERS[format]
    with TraceReader(trace) as reader:
        _require_output(output, trace, force, is_text)
        for problem in reader.problems:
            say(f"{trace}: {problem}")
        _warn_of_clear_tokens(reader, format)
        with _opened(output, is_text) as stream:
            write(reader, stream)
    return 0


def _jsonl(reader: TraceReader, stream: TextIO) -> None:
    write_jsonl(reader.envelopes(), stream)


def _perfetto(reader: TraceReader, stream: TextIO) -> None:
    write_perfetto(reader, stream, reader.problems)


def _html(reader: TraceReader, stream: TextIO) -> None:
    write_html(reader, stream, reader.path.name, reader.problems)


def _parquet(reader: TraceReader, stream: BinaryIO) -> None:
    write_parquet(reader.envelopes(), stream)


_WRITERS: dict[str, tuple[Callable[[TraceReader, Any], None], bool]] = {
    "jsonl": (_jsonl, True),
    "parquet": (_parquet, False),
    "perfetto": (_perfetto, True),
    "html": (_html, True),
}
"""Format -> its writer, and whether it writes text."""
assert set(_WRITERS) == set(get_args(ExportFormat))


def _require_output(output: Path, trace: Place, force: bool, is_text: bool) -> None:
    """Raises before anything is read, let alone written."""
    if output == STANDARD:
        if not is_text and sys.stdout.isatty():
            raise BadInput(
                "parquet is no text and standard output is a terminal; give a file with --out"
            )
        return
    require_output(output, [trace], force=force)


def _warn_of_clear_tokens(reader: TraceReader, format: ExportFormat) -> None:
    """Prompts are personal data; whoever hands a file on should know what is in it."""
    if is_all_redacted(reader):
        return
    if next(reader.find(kinds=[RequestAdded.__name__]), None) is not None:
        quoted = format in ("perfetto", "html")
        what = "what findings quote" if quoted else "the tokens"
        verb = "goes" if quoted else "go"
        say(
            f"note: {what} of prompts and answers {verb} out in clear; "
            "`kvrewind redact` makes a trace without"
        )


@contextmanager
def _opened(output: Path, is_text: bool) -> Iterator[IO[Any]]:
    """The stream to write to. What was not written to its end doesn't stay under its name."""
    if output == STANDARD:
        yield sys.stdout if is_text else sys.stdout.buffer
        return
    is_special = output.exists() and not output.is_file()  # such as /dev/null
    unfinished = output if is_special else output.with_name(f"{output.name}.part")
    try:
        try:
            with (
                unfinished.open("w", encoding="utf-8", newline="\n")
                if is_text
                else unfinished.open("wb")
            ) as stream:
                yield stream
            unfinished.replace(output)
        finally:
            if not is_special:
                unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise BadOutput(output, error.strerror or str(error)) from None
