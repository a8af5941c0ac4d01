"""One step of a run as rows of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Table

from . import schema
from .digest import DigestChain, StepDigest
from .encoder import UNFIT, Encoder
from .errors import BadEvent
from .events import Envelope
from .postings import Posting, PostingWriter


class EncodedStep(NamedTuple):
    """Rows of the tables of those names, and the step's own row of `steps`."""

    events: list[tuple[Any, ...]]
    names: list[tuple[int, str]]
    postings: list[Posting]
    digest: StepDigest


class StepEncoder:
    """Encodes the steps of one trace in their order. What it gives must all be committed, and at
    once: later steps refer to earlier ones."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._chain = DigestChain()
        self._postings = PostingWriter(self._encoder.names.ids_of)

    @property
    def next_name(self) -> int:
        """The id that the next new name gets."""
        return self._encoder.names.next_id

    def restart(self) -> None:
        """Let nothing that comes from now on refer to what came before: behind a gap, or where a
        ring begins. The chain of digests goes on."""
        self._encoder.forget()

    def encode(self, step: int, envelopes: Sequence[Envelope]) -> EncodedStep:
        """Raises BadEvent for what a trace can't hold."""
        rows: list[tuple[Any, ...]] = []
        heads: list[Any] = []
        payloads: list[bytes] = []
        floats: list[Any] = []
        of_class, gather_from = self._encoder.of_class, self._postings.of_class
        for seq, own_step, t_ns, rank, event in envelopes:
            cls = type(event)
            kind = cls.__name__
            try:
                request, block, payload, exact, own_floats = of_class(cls)(event, seq, rank)
            except UNFIT as error:
                raise BadEvent(kind, str(error)) from error
            if cls in gather_from:
                gather_from[cls](event, seq, rank)
            rows.append((seq, own_step, t_ns, rank, kind, request, block, payload))
            heads += (own_step, kind, request, block)
            payloads.append(exact)
            if own_floats:
                floats += (kind, own_floats)
        digest = self._chain.close(step, envelopes[-1].seq, heads, payloads, floats)
        postings = self._postings.close_step(envelopes[0].seq, envelopes[-1].seq, len(rows))
        self._encoder.tidy()
        return EncodedStep(rows, self._encoder.names.take_new(), postings, digest)

    def finish(self) -> list[Posting]:
        """Rows of `postings` for what is not yet covered, when nothing more comes."""
        return self._postings.flush()


def rows_of(steps: Sequence[EncodedStep]) -> Iterator[tuple[Table, list[tuple[Any, ...]]]]:
    """Rows of each table, which are to be committed together."""
    yield schema.names, [row for step in steps for row in step.names]
    yield schema.events, [row for step in steps for row in step.events]
    yield schema.postings, [tuple(row) for step in steps for row in step.postings]
    yield schema.steps, [tuple(step.digest) for step in steps]
