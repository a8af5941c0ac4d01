"""One request's part of a step."""

from __future__ import annotations

from typing import NamedTuple

from ..recorder.decision import row_index
from ..recorder.events import Phase
from .request import Request


class Row(NamedTuple):
    """Tokens [computed, computed + query_len) of a request; the last ones may be drafts."""

    request: Request
    computed: int
    query_len: int
    phase: Phase
    drafts: tuple[int, ...] = ()
    forks: tuple[Request, ...] = ()
    """Who takes a first token of its own from this row, besides the request."""
    samples: bool = True
    """Whether a token is chosen from its logits; not so for a piece that doesn't end its prompt."""

    @property
    def seq_len(self) -> int:
        return self.computed + self.query_len

    @property
    def decision_index(self) -> int:
        """By which decisions about it are named."""
        return row_index(self.seq_len, self.query_len, self.phase)

    @property
    def takers(self) -> tuple[Request, ...]:
        """Who gets a token from it."""
        return (self.request, *self.forks) if self.samples else ()


def prefill_row(request: Request, count: int) -> Row:
    """The next `count` tokens of what was known when it was admitted."""
    ends = request.computed + count == request.length
    return Row(request, request.computed, count, "prefill", samples=ends)
