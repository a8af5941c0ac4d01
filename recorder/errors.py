"""What goes wrong outside our own code, as exceptions that a person can act on.

Two levels: `BadInput` for what the user gave us, `RecordingFailed` for what the machine did to a
recording. Each message is one sentence that names the file, line or position, and then the next
thing to try. The command line catches `KvrewindError` once and exits with `exit_status`.
"""

from __future__ import annotations

from pathlib import Path


class KvrewindError(Exception):
    """Base of all errors that kvrewind raises on purpose."""

    exit_status = 2


class BadInput(KvrewindError):
    """A file, an option or a name that can't be used as given."""


class MissingTrace(BadInput):
    """There is no file of that name."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(f"{path}: there is no such file; give the path of a .kvtrace file")


class NotATrace(BadInput):
    """The file exists and is not one of our traces."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(
            f"{path} is not a kvrewind trace: {why}; "
            "give a .kvtrace file written by `kvrewind record` or `kvrewind import`"
        )


class NewerFormat(BadInput):
    """The trace was written by a later kvrewind."""

    def __init__(self, path: Path | str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has trace format {found} and this kvrewind reads up to {known}; "
            "upgrade kvrewind, or export the trace to JSON lines with the version that wrote it"
        )


class UnreadableTrace(BadInput):
    """The file is one of our traces, and what was asked of it can't be read."""


class OutputExists(BadInput):
    """Nothing is written over without being told to."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(f"{path} exists already; choose another name, or replace it with --force")


class BadOutput(BadInput):
    """The output can't be created where it was asked for."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(f"{path} can't be created: {why}; choose a place that can be written to")


class BadLine(BadInput):
    """One line of a JSON lines file. `line` counts from 1, as editors do."""

    def __init__(self, name: Path | str, line: int, problem: str, try_next: str) -> None:
        super().__init__(f"{name}, line {line}: {problem}; {try_next}")
        self.name = str(name)
        self.line = line
        self.problem = problem


class BadEvent(BadInput):
    """An event that can't be encoded, or stored bytes that are no event of that kind."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"{kind}: {problem}")
        self.kind = kind
        self.problem = problem


class NoSuchPosition(BadInput):
    """A position that is not written `step:seq`, or that the trace doesn't have."""


class RecordingFailed(KvrewindError):
    """Recording stopped; the run went on. Kept in `TraceWriter.failure`, never raised by emit."""

    def __init__(
        self, path: Path | str, why: str, remedy: str = "free the disk or choose another place"
    ) -> None:
        super().__init__(
            f"recording to {path} stopped: {why}; the run itself is unaffected, the trace is "
            f"incomplete; {remedy}, and record again"
        )
