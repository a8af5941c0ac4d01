"""What accounts for the content of a slot: the one place where a consequence finds its cause.

A slot holds what the wrong request wrote there because of an earlier wrong decision: its table
listed a block that it did not hold, its slot was computed wrongly, its row was mixed up, it wrote
in place what others share, it copied wrongly, or the block was handed out while somebody held it.
Whoever reads or shares that content afterwards is part of the earlier incident.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..writes import Write
from .base import Violation
from .case import Case, Subject


def block_subject(group: int, block: int, generation: int) -> Subject:
    """A block's generation: what has the wrong count."""
    return ("block", group, block, generation)


def handed_subject(group: int, block: int, generation: int) -> Subject:
    """A generation that was handed out while somebody held the block from before: what it holds
    may be either's, and so may its keys be. A wrong count alone changes no content."""
    return ("handed", group, block, generation)


def exclusive_subject(group: int, block: int, generation: int) -> Subject:
    return ("exclusive", group, block, generation)


def copy_subject(group: int, block: int, generation: int) -> Subject:
    return ("copy", group, block, generation)


def scrubbed_subject(group: int, block: int, generation: int) -> Subject:
    """A generation that was overwritten because its count was wrong."""
    return ("scrubbed", group, block, generation)


def listed_subject(group: int, request: str, block: int) -> Subject:
    """A block that a request's table lists wrongly, at whatever index."""
    return ("listed", group, request, block)


def taken_subject(group: int, request: str, block: int) -> Subject:
    """A block that a request shared wrongly, at whatever index."""
    return ("taken", group, request, block)


def key_subject(group: int, block: int, generation: int, key: Hashable) -> Subject:
    """An index entry that somebody made for a block that wasn't his."""
    return ("key", group, block, generation, key)


def cause_of_content(
    case: Case, group: int, block: int, generation: int, write: Write | None
) -> Violation | None:
    """The violation that put this write into this block; None for a write in its right place."""
    return case.cause(
        *_of_writer(case, group, block, generation, write),
        copy_subject(group, block, generation),
        exclusive_subject(group, block, generation),
        handed_subject(group, block, generation),
    )


def _of_writer(
    case: Case, group: int, block: int, generation: int, write: Write | None
) -> tuple[Subject, ...]:
    if write is None:
        return ()
    if write.request is None:
        return (("pad", group, write.slot, write.step),)
    index, offset = divmod(write.position, max(case.state.pool(group).block_size, 1))
    is_handed = case.was_handed(group, block, generation, write.request, index)
    if is_handed and write.slot % max(case.state.pool(group).block_size, 1) == offset:
        return ()
    subjects: tuple[Subject, ...] = (
        ("address", group, write.step, write.request),
        ("row", group, write.request, write.step),
    )
    return subjects if is_handed else (*subjects, ("entry", group, write.request, index, block))
