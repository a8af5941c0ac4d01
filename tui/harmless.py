"""Text of unknown origin, made safe for a terminal."""

from __future__ import annotations

_ALLOWED = ("\n", "\t")
_SHOWN = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))
    if chr(code) not in _ALLOWED
}


def harmless(text: str) -> str:
    """Every control character replaced by one that only takes its place."""
    return text if text.isprintable() else text.translate(_SHOWN)
