"""The options by which a trace is redacted, and how commands say that one isn't."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..recorder.keyed_hash import RedactionKey
from ..recorder.redaction import Redactor

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
