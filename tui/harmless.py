"""Text of unknown origin, made safe for a terminal."""

from __future__ import annotations

_ALLOWED = ("\n", "\t")
_SHOWN = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in _ALLOWED
}
"""Those above 0x2000 break lines, or turn the direction of what follows."""


def harmless(text: str) -> str:
    """Every control character replaced by one that only takes its place."""
    return text if text.isprintable() else text.translate(_SHOWN)


def harmless_line(text: str) -> str:
    """As `harmless`, and still one line: a name with a line break in it makes no second one."""
    return harmless(text).replace("\n", "\N{REPLACEMENT CHARACTER}")
