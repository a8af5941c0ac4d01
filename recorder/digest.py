"""One chained digest per step, so that two runs, or a trace and its events, can be compared.

A step's digest covers the digest before it and, for each event in order, step, kind, request,
block and the canonical payload without float-shaped fields. Floats have a chain of their own: on
another machine they may drift while every decision stays the same. How the events are stored makes
no difference.

A step closes when an event of a higher step arrives; an event of a lower one (engines that
overlap steps) belongs to the group in which it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgpack

from .encoder import Encoded, Encoder
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

    def resume(self, closed: StepDigest) -> None:
        """Go on behind a step whose events are no longer there."""
        self._exact, self._floats = closed.digest, closed.float_digest

    def close_step(
        self, step: int, last_seq: int, events: Iterable[tuple[int, str, Encoded]]
    ) -> StepDigest:
        """`events`: step, kind and encoding of each, in order."""
        heads: list[Any] = []
        payloads: list[bytes] = []
        floats: list[Any] = []
        for own_step, kind, encoded in events:
            heads += (own_step, kind, encoded.request, encoded.block)
            payloads.append(encoded.exact)
            if encoded.floats:
                floats += (kind, encoded.floats)
        return self.close(step, last_seq, heads, payloads, floats)

    def close(
        self, step: int, last_seq: int, heads: list[Any], payloads: list[bytes], floats: list[Any]
    ) -> StepDigest:
        """The same, with what it is taken over laid out: step, kind, request and block of each
        event; their canonical payloads; kind and floats of those that have some."""
        pack = self._pack
        self._exact = _digest([self._exact, pack(heads), *payloads])
        self._floats = _digest([self._floats, pack(floats)])
        return StepDigest(step, last_seq, self._exact, self._floats)


def event_digest(seq: int, step: int, kind: str, encoded: Encoded) -> bytes:
    """Of one event, apart from the chain: where a ring begins, a few older ones are still there."""
    request, block, _, exact, floats = encoded
    return _digest([msgpack.packb((seq, step, kind, request, block)) or b"", exact, floats])


def joined_digest(digests: Iterable[bytes]) -> bytes:
    return _digest(list(digests))


def _digest(parts: list[bytes]) -> bytes:
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
    chain, encoder = DigestChain(), Encoder()
    for step, group in by_step(envelopes):
        encoded = [(e.step, e.kind, encoder.encode(e.event, e.seq, e.rank)) for e in group]
        encoder.tidy()
        yield chain.close_step(step, group[-1].seq, encoded)
