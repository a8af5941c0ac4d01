"""The options by which a trace is redacted, and how commands say that one isn't."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..recorder.events import RunStarted
from ..recorder.keyed_hash import RedactionKey
from ..recorder.reader import TraceReader
from ..recorder.redaction import Redactor, is_redacted

Redact = Literal["tokens", "all"]
"""`tokens`: tokens, keys and text. `all`: the names of requests, tenants, sessions and adapters
too."""


def redactor_of(redact: Redact | None, key: Path | None) -> Redactor | None:
    """None where nothing is to be redacted; a key file alone means `tokens`.

    Raises `BadKeyFile`.
    """
    if redact is None and key is None:
        return None
    secret = RedactionKey.random() if key is None else RedactionKey.read(key)
    return Redactor.keyed(secret, names="keyed" if redact == "all" else "clear")


def headers_of(reader: TraceReader) -> list[RunStarted]:
    """One, or one for each rank of a merged trace."""
    found = (envelope.event for envelope in reader.find(kinds=[RunStarted.__name__]))
    return [event for event in found if isinstance(event, RunStarted)]


def is_all_redacted(reader: TraceReader) -> bool:
    """Whether no rank of the trace is in clear."""
    headers = headers_of(reader)
    return bool(headers) and all(map(is_redacted, headers))
