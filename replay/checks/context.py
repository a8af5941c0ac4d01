"""Whether what a slot holds is what its reader would have computed itself.

The key and value of a token depend on it and on everything before it, and on for whom they were
computed: so two requests may use one slot exactly when all of that is equal. Tokens are compared,
keys never (CVE-2025-25183: two prompts under one hash).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, NamedTuple

from ..requests import RequestState
from ..state import State
from ..writes import Epoch, Write

Reason = Literal["position", "tokens", "adapter", "tenant", "extra_keys", "epoch"]


class Mismatch(NamedTuple):
    reason: Reason
    expected: object
    actual: object


class ContextComparer:
    """Compares a write with a reader; remembers how far two requests' tokens agree."""

    def __init__(self) -> None:
        self.has_dropped = False
        """After a dropped span a writer may be unknown, and then nothing is held against it."""
        self._agreed: dict[tuple[str, int, str, int], tuple[int, int, int]] = {}

    def forget(self, but: Container[str]) -> None:
        """Let go of all requests but these."""
        self._agreed = {
            pair: known for pair, known in self._agreed.items() if pair[0] in but and pair[2] in but
        }

    def mismatch(
        self, state: State, write: Write, reader: str, position: int, epoch: Epoch | None
    ) -> Mismatch | None:
        """Why the reader may not use this slot as its token `position`; None when it may.

        `epoch` is the one in which the reader took the slot over; None leaves epochs out.
        """
        if write.position != position:
            return Mismatch("position", position, write.position)
        theirs = state.requests.get(reader)
        mine = state.requests.get(write.request) if write.request is not None else None
        if theirs is None or (mine is None and self.has_dropped):
            return None
        if mine is None:
            return Mismatch("tokens", reader, write.request)
        return (
            self._tokens(write, mine, reader, theirs, position)
            or _for_whom(state, mine, theirs, position)
            or _epoch(write.epoch, epoch)
        )

    def _tokens(
        self, write: Write, mine: RequestState, reader: str, theirs: RequestState, position: int
    ) -> Mismatch | None:
        written = mine.tokens_at(write.revision)
        agreed = self._agree(write, written, reader, theirs)
        if agreed > position:
            return None
        if agreed == len(written):
            # The writer's own tokens from there on are in flight: only the slot tells.
            known = theirs.tokens[position] if position < len(theirs.tokens) else None
            if None in (write.token, known) or write.token == known:
                return None
            return Mismatch("tokens", known, write.token)
        return _token_mismatch(theirs.tokens, written, agreed)

    def _agree(
        self, write: Write, written: tuple[int, ...], reader: str, theirs: RequestState
    ) -> int:
        """How many leading tokens are equal."""
        read = theirs.tokens
        key = (str(write.request), write.revision, reader, theirs.revision)
        known = self._agreed.get(key)
        if known is not None:
            agreed, len_written, len_read = known
            if agreed < min(len_written, len_read) or (len_written, len_read) == (
                len(written),
                len(read),
            ):
                return agreed
        agreed = common_prefix(written, read)
        self._agreed[key] = (agreed, len(written), len(read))
        return agreed


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Number of leading equal entries, by halving: each comparison is one slice."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _token_mismatch(read: tuple[int, ...], written: tuple[int, ...], at: int) -> Mismatch:
    return Mismatch(
        "tokens",
        read[at] if at < len(read) else None,
        written[at] if at < len(written) else None,
    )


def _for_whom(
    state: State, mine: RequestState, theirs: RequestState, position: int
) -> Mismatch | None:
    if mine.added.adapter != theirs.added.adapter:
        return Mismatch("adapter", theirs.added.adapter, mine.added.adapter)
    sharing = state.header.config.get("sharing") if state.header else None
    if mine.added.tenant != theirs.added.tenant and sharing != "global":
        return Mismatch("tenant", theirs.added.tenant, mine.added.tenant)
    size = state.header.block_size if state.header else 0
    end = (position // size + 1) * size if size > 0 else position + 1
    ours, others = theirs.extra_keys_below(end), mine.extra_keys_below(end)
    if ours != others:
        return Mismatch("extra_keys", [list(pair) for pair in ours], [list(p) for p in others])
    return None


def _epoch(written: Epoch, taken: Epoch | None) -> Mismatch | None:
    if taken is None or (written.weights, written.adapter) == (taken.weights, taken.adapter):
        return None
    return Mismatch("epoch", [taken.weights, taken.adapter], [written.weights, written.adapter])
