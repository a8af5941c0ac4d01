"""How a request looks everywhere: a short tag, and a colour of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from .spans import OWNER_COLOURS, Span

TAG_WIDTH = 4

PAD = "pad"

_TRAILING_NUMBER = re.compile(r"(\d+)(#\d+)?$")


class Owner(NamedTuple):
    tag: str
    """At most `TAG_WIDTH` cells; the name itself when it is that short."""
    colour: int

    @property
    def role(self) -> str:
        return f"owner{self.colour}"


class Owners:
    """Tags and colours by request name. `order` is the order of arrival, as far as known.

    A numbered name has the colour of its number, so that it never changes while a trace loads.
    """

    def __init__(self, order: Sequence[str] = ()) -> None:
        self._order = {name: i for i, name in enumerate(order)}
        self._known: dict[str | None, Owner] = {None: Owner(PAD, OWNER_COLOURS)}

    def of(self, request: str | None) -> Owner:
        found = self._known.get(request)
        if found is None and request is not None:
            found = self._known[request] = Owner(_tag(request), self._colour(request))
        assert found is not None
        return found

    def tag(self, request: str | None) -> Span:
        owner = self.of(request)
        return Span(owner.tag, owner.role)

    def name(self, request: str | None) -> Span:
        owner = self.of(request)
        return Span(PAD if request is None else request, owner.role)

    def _colour(self, request: str) -> int:
        number = _TRAILING_NUMBER.search(request)
        if number:
            return int(number.group(1)) % OWNER_COLOURS
        known = self._order.get(request)
        return (crc32(request.encode()) if known is None else known) % OWNER_COLOURS


def _tag(request: str) -> str:
    if len(request) <= TAG_WIDTH:
        return request
    number = _TRAILING_NUMBER.search(request)
    if number is None:
        return request[:TAG_WIDTH]
    digits = number.group(0)
    return (request[: max(TAG_WIDTH - len(digits), 1)] + digits)[:TAG_WIDTH]
