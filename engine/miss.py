"""Why a lookup in the prefix index gave no more than it gave."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .content import Content, ExtraKeys
from .granularity import Granularity


class Neighbourhood(Protocol):
    """What the index knows of contents that it doesn't have."""

    def was_evicted(self, content: Content) -> bool: ...

    def was_voided(self, content: Content) -> bool:
        """Whether it was there as an earlier epoch computed it."""
        ...

    def of_same_text(self, content: Content) -> Iterable[Content]:
        """Contents with the same tokens from the first on, computed for somebody else."""
        ...

    def longest_agreement(self, content: Content) -> int | None:
        """Leading tokens that the nearest content after the same parent has too; None when no
        content follows that parent."""
        ...


def why_missed(
    *,
    found: int,
    shared: int,
    missed: Content | None,
    num_tokens: int,
    block_size: int,
    granularity: Granularity,
    index: Neighbourhood,
) -> str | None:
    """What `PrefixLookedUp.missed_because` says; None when all that can be shared was.

    `found` leading blocks of the request's `num_tokens` tokens are in the index, `shared` of them
    were taken, and `missed` is the content behind them; None when there was nothing left to look
    for, since the last token is computed in any case.
    """
    if shared < found:
        return f"cut to a whole {granularity}"
    if missed is None:
        rest = num_tokens - found * block_size
        return None if rest in (1, block_size) else "not aligned to a block"
    if index.was_evicted(missed):
        return "evicted"
    if index.was_voided(missed):
        return "other epoch"
    elsewhere = _least_different(missed, index.of_same_text(missed))
    if elsewhere is not None:
        return elsewhere
    agreement = index.longest_agreement(missed)
    start = missed.index * block_size
    if agreement is None or start + agreement == 0:
        return "never seen"
    return f"first differing token at {start + agreement}"


def _least_different(wanted: Content, others: Iterable[Content]) -> str | None:
    """In what the nearest of some contents of the same text differs; None without any."""
    nearest: list[str] | None = None
    for other in others:
        differences = _differences(other, wanted)
        if nearest is None or len(differences) < len(nearest):
            nearest = differences
        if len(nearest) == 1:
            break
    return nearest[0] if nearest else None


def _differences(other: Content, wanted: Content) -> list[str]:
    """In what two contents of the same text differ, at least one thing."""
    found: list[str] = []
    if other.tenant != wanted.tenant:
        found.append("other tenant")
    if other.adapter != wanted.adapter:
        found.append("other adapter")
    at = first_difference(_all_extra_keys(other), _all_extra_keys(wanted))
    if at is not None:
        found.append(f"other extra key at {at}")
    if other.epoch != wanted.epoch:
        found.append("other epoch")
    return found


def _all_extra_keys(content: Content) -> ExtraKeys:
    return tuple(key for block in content.chain() for key in block.extra_keys)


def first_difference(a: ExtraKeys, b: ExtraKeys) -> int | None:
    """The first position that one of them has a key at which the other hasn't."""
    return min((position for position, _ in {*a} ^ {*b}), default=None)
