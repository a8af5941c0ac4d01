"""What a bundle holds: everything that somebody needs who has neither the trace nor its machine."""

from __future__ import annotations

import io
import json
import platform
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from ..recorder.events import RunStarted
from ..recorder.reader import TraceReader
from ..recorder.redaction import LABEL, is_redacted
from ..recorder.stores.bundled import BUNDLED_TRACE as TRACE
from ..replay.exports.html import write_html
from .commands.check import check
from .commands.doctor import PACKAGES, version_of
from .commands.info import info

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a zip file can hold: two bundles of one trace are the same bytes."""

_WHAT_ELSE = {
    "README.txt": "this text",
    TRACE: "the recording: every event of the run, in order (SQLite)",
    "check.json": "what `kvrewind check --format json` says of it: verdict, findings, culprits",
    "info.json": "what `kvrewind info --format json` says of it: header, counts, memory",
    "report.html": "the same as a page, for a browser; it needs no network",
    "versions.json": "the programs that made this bundle",
}


def contents(trace: Path, problems: tuple[str, ...] = ()) -> dict[str, str | Path]:
    """File name -> text, or the file itself, for a trace that may be handed over as it is.
    `problems` are those of the file that it was made from."""
    with TraceReader(trace) as reader:
        header = reader.run
        report = io.StringIO()
        write_html(reader, report, TRACE, reader.problems)
    return {
        TRACE: trace,
        "check.json": _said(lambda: check(trace, format="json")),
        "info.json": _said(lambda: info(trace, format="json")),
        "report.html": report.getvalue(),
        "versions.json": json.dumps(_versions(), indent=2) + "\n",
        "README.txt": _readme(header, problems),
    }


def write_zip(files: Mapping[str, str | Path], path: Path) -> None:
    """In the order of their names, and of no date."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # as on Unix, wherever it is made
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as target, _opened(files[name]) as file:
                shutil.copyfileobj(file, target)


def _opened(content: str | Path) -> IO[bytes]:
    return content.open("rb") if isinstance(content, Path) else io.BytesIO(content.encode())


def _said(command: Callable[[], Any]) -> str:
    """What a command gives as JSON; where the trace lies on this machine is nobody's business."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(io.StringIO()):  # said of the original already
        command()
    value = json.loads(stream.getvalue())
    if "trace" in value:
        value["trace"] = TRACE
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _versions() -> dict[str, str | None]:
    found = {package: version_of(package) for package, _, _ in PACKAGES}
    return {
        "kvrewind": version("kvrewind"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **found,
    }


def _readme(header: RunStarted | None, problems: tuple[str, ...]) -> str:
    files = "\n".join(f"  {name:14} {what}" for name, what in sorted(_WHAT_ELSE.items()))
    damage = "".join(f"\nThe recorded file was damaged: {problem}.\n" for problem in problems)
    return f"""\
A recording of the KV cache of a language model's server
=========================================================

kvrewind {version("kvrewind")} made this. It recorded which request was given which blocks of the
cache, what was written to them and read from them, and which decision led to it.
{damage}
What is in it

{files}

How to open it

  pip install kvrewind
  kvrewind check THIS.zip      who read whose memory, and why
  kvrewind open THIS.zip       step through it
  kvrewind bisect THIS.zip     the one decision that allowed it

or the same with {TRACE}, once it is unpacked. report.html opens without kvrewind.

A position such as 9:1203 is step 9, event 1203; every command and screen takes it.

{_privacy(header)}"""


def _privacy(header: RunStarted | None) -> str:
    if not is_redacted(header):
        return """\
What it tells of people

EVERYTHING: the tokens of all prompts and answers are in clear, and so is their text where it was
recorded. Treat it as you would the conversations themselves.
"""
    assert header is not None
    label = header.config[LABEL]
    clear = not isinstance(label, Mapping) or label.get("names") != "keyed"
    names = (
        "the names of requests, tenants, sessions and adapters, as the server gave them"
        if clear
        else "which requests have the same tenant, session or adapter (their names are hashes)"
    )
    return f"""\
What it tells of people

It is redacted. There is no text in it, and in place of each token stands a hash with a key that
is not in it: equal where the tokens are, and otherwise without meaning. So are the keys of blocks,
digests of their contents, keys of images and salts.

It still tells

  - {names};
  - how long each prompt and answer is, and when it came;
  - which tokens are equal to which others, within this recording;
  - the model's name, versions and settings.

So long texts of much-used words might be guessed from how often each hash comes, as in any
substitution cipher: give it to people you have reason to trust.
"""
