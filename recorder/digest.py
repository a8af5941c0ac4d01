"""One chained digest per step, so that two runs, or a trace and its events, can be compared.

A step's digest covers the digest before it and, for each event in order, step, kind, request,
block and payload without float-shaped fields. Floats have a chain of their own: on another
machine they may drift while every decision stays the same.

A step closes when an event of a higher step arrives; an event of a lower one (engines that
overlap steps) belongs to the group in which it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgpack

from .codec import Encoded, Encoder
from .events import Envelope

DIGEST_SIZE = 16
"""Bytes. The chain guards against accidents and divergence; it is no signature."""


class StepDigest(NamedTuple):
    step: int
    last_seq: int
    digest: bytes
    float_digest: bytes


class DigestChain:
    """Feed the steps in order; each gets a digest that depends on all before it."""

    def __init__(self) -> None:
        self._exact = b""
        self._floats = b""
        self._pack = msgpack.Packer().pack

    def close_step(
        self, step: int, last_seq: int, events: Iterable[tuple[int, str, Encoded]]
    ) -> StepDigest:
        """`events`: step, kind and encoding of each, in order."""
        pack = self._pack
        parts, floats = [self._exact], [self._floats]
        for own_step, kind, encoded in events:
            parts.append(pack((own_step, kind, encoded.request, encoded.block, encoded.exact)))
            if encoded.floats:
                floats.append(pack((kind, encoded.floats)))
        self._exact, self._floats = _digest(parts), _digest(floats)
        return StepDigest(step, last_seq, self._exact, self._floats)


def _digest(parts: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(parts), digest_size=DIGEST_SIZE).digest()


def by_step(envelopes: Iterable[Envelope]) -> Iterator[tuple[int, list[Envelope]]]:
    """Groups of envelopes as their steps close, with the step that each group is."""
    group: list[Envelope] = []
    step = 0
    for envelope in envelopes:
        if group and envelope.step > step:
            yield step, group
            group = []
        step = envelope.step if not group else max(step, envelope.step)
        group.append(envelope)
    if group:
        yield step, group


def step_digests(envelopes: Iterable[Envelope]) -> Iterator[StepDigest]:
    """The digests that a trace of these envelopes holds."""
    chain, encode = DigestChain(), Encoder().encode
    for step, group in by_step(envelopes):
        yield chain.close_step(
            step, group[-1].seq, ((e.step, e.kind, encode(e.event)) for e in group)
        )
