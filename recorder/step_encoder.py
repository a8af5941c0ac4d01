"""One step of a run as rows of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Table

from . import schema
from .digest import DigestChain, StepDigest
from .encoder import UNFIT, EncodeClass, Encoder
from .errors import BadEvent
from .events import Envelope, Event
from .postings import Posting, PostingWriter


class EncodedStep(NamedTuple):
    """Rows of the tables of those names, and the step's own row of `steps`."""

    events: list[tuple[Any, ...]]
    names: list[tuple[int, str]]
    postings: list[Posting]
    digest: StepDigest


class _OfClass(NamedTuple):
    """What becomes of the events of a class."""

    kind: str
    encode: EncodeClass
    gather: Callable[[Any, int, int], None] | None


class StepEncoder:
    """Encodes the steps of one trace in their order. What it gives must all be committed, and at
    once: later steps refer to earlier ones."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._chain = DigestChain()
        self._postings = PostingWriter(self._encoder.names.ids_of)
        self._of_class: dict[type[Event], _OfClass] = {}

    def _class(self, cls: type[Event]) -> _OfClass:
        gather = self._postings.of_class.get(cls)
        known = _OfClass(cls.__name__, self._encoder.of_class(cls), gather)
        self._of_class[cls] = known
        return known

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
        of_class = self._of_class
        for seq, own_step, t_ns, rank, event in envelopes:
            cls = type(event)
            kind, encode, gather = of_class.get(cls) or self._class(cls)
            try:
                request, block, payload, exact, own_floats = encode(event, seq, rank)
            except UNFIT as error:
                raise BadEvent(kind, str(error)) from error
            if gather is not None:
                gather(event, seq, rank)
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
