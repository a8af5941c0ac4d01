"""HTML elements, so that no text can ever be taken for markup.

The tree is the standard library's; it escapes what it serialises. Text that may come from anybody
loses its control characters too, those that turn the reading direction included.
"""

from __future__ import annotations

import unicodedata
from xml.etree.ElementTree import Element, tostring

Child = Element | str


def element(tag: str, *children: Child | None, **attributes: object) -> Element:
    """`class_` and the like give attributes whose names Python keeps for itself; those that are
    None are left out, and so are children that are None."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), visible(str(value)))
    return filled(made, *children)


def filled(made: Element, *children: Child | None) -> Element:
    for child in children:
        if isinstance(child, str):
            _add_text(made, visible(child))
        elif child is not None:
            made.append(child)
    return made


def serialized(made: Element) -> str:
    return tostring(made, encoding="unicode", method="html")


def visible(text: str) -> str:
    """Every character that does something instead of being seen, replaced by a mark."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    does_something = unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t"
    return "\N{REPLACEMENT CHARACTER}" if does_something else character


def _add_text(made: Element, text: str) -> None:
    if len(made):
        made[-1].tail = (made[-1].tail or "") + text
    else:
        made.text = (made.text or "") + text
