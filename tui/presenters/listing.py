"""Events of some kinds, one below the other: what `kvrewind record --show` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from ...recorder.errors import BadInput
from ...recorder.events import KINDS
from ...replay.source import EventSource
from .events import Names, summary
from .owners import Owners
from .pieces import Pieces
from .spans import Span, plain


class WholeNames(Owners):
    """A list has room for names, where a grid has it for tags."""

    def tag(self, request: str | None) -> Span:
        return self.name(request)


class Listed(NamedTuple):
    """`decision` is the id of the one that the event carries out, where there is one."""

    position: str
    kind: str
    what: str
    decision: str


def kinds_of(texts: Sequence[str], option: str = "--show") -> tuple[str, ...]:
    """From `BlockCopied,RequestForked`, each text any number of kinds. Raises `BadInput`."""
    kinds = tuple(kind.strip() for text in texts for kind in text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KINDS)}"
            raise BadInput(f"{option}: there is no event {kind!r}; {hint}")
    return kinds


def listed(source: EventSource, kinds: Sequence[str]) -> Iterator[Listed]:
    """In the order of the trace."""
    names = Names(WholeNames(), Pieces.of(source))
    for envelope in source.find(kinds=kinds):
        yield Listed(
            envelope.position,
            envelope.kind,
            plain(summary(envelope, names)),
            envelope.event.decision or "",
        )
