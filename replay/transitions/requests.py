"""Transitions of requests: their tokens, and how far they are computed."""

from __future__ import annotations

from ...recorder.events import (
    DraftVerified,
    Envelope,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    RequestRevised,
    TokensSampled,
)
from ..requests import RequestState
from ..state import State
from .blocks import drop_entry


def request_added(state: State, envelope: Envelope, event: RequestAdded) -> None:
    state.requests[event.request] = RequestState(event, event.prompt_tokens)


def request_forked(state: State, envelope: Envelope, event: RequestForked) -> None:
    child, parent = state.requests.get(event.request), state.requests.get(event.parent)
    if child is None:
        return
    taken = max(event.tokens, 0)
    tokens = child.tokens
    if parent is not None and len(tokens) < taken:
        tokens += parent.tokens[len(tokens) : taken]
    state.requests[event.request] = child._replace(tokens=tokens, computed=taken, taken_over=taken)


def request_preempted(state: State, envelope: Envelope, event: RequestPreempted) -> None:
    known = state.requests.get(event.request)
    if known is not None and not known.is_finished:
        state.requests[event.request] = known._replace(
            status="preempted", preemptions=known.preemptions + 1, computed=0
        )


def request_finished(state: State, envelope: Envelope, event: RequestFinished) -> None:
    known = state.requests.get(event.request)
    if known is not None and not known.is_finished:
        state.requests[event.request] = known._replace(status="finished", finished_seq=envelope.seq)


def request_revised(state: State, envelope: Envelope, event: RequestRevised) -> None:
    """Keys over dropped tokens are void, in blocks that the request alone holds."""
    known = state.requests.get(event.request)
    if known is None:
        return
    kept = max(event.tokens_kept, 0)
    state.requests[event.request] = known._replace(
        tokens=known.tokens[:kept] + (event.tokens or ()),
        computed=min(known.computed, kept),
        former=(*known.former, known.tokens),
    )
    for pool in state.pools.values():
        for index, number in enumerate(pool.table(event.request)):
            if number is None or (index + 1) * pool.block_size <= kept:
                continue
            block = pool.block(number)
            if all(holder.request == event.request for holder in block.holders):
                for key in block.keys:
                    drop_entry(pool, key, number)
                pool.blocks[number] = block._replace(keys=())


def tokens_sampled(state: State, envelope: Envelope, event: TokensSampled) -> None:
    for name, token, position in zip(event.requests, event.tokens, event.positions, strict=False):
        known = state.requests.get(name)
        if known is None:
            continue
        if not 0 <= position < len(known.tokens):
            state.requests[name] = known._replace(tokens=(*known.tokens, token))
        elif known.tokens[position] != token:
            tokens = (*known.tokens[:position], token, *known.tokens[position + 1 :])
            state.requests[name] = known._replace(
                tokens=tokens, former=(*known.former, known.tokens)
            )


def draft_verified(state: State, envelope: Envelope, event: DraftVerified) -> None:
    known = state.requests.get(event.request)
    if known is not None:
        state.requests[event.request] = known._replace(computed=event.first + event.accepted)
