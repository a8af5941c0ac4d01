"""Events and numbers in words, the same in every report and view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockDigested,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    BlockUnregistered,
    Event,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    RequestRevised,
)

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def named(name: str, longest: int = 24) -> str:
    """A long name without its middle: what tells it from others is often at its end."""
    if len(name) <= longest:
        return name
    end = (longest - 1) * 2 // 3
    return f"{name[: longest - 1 - end]}…{name[-end:]}"


def elided(items: Sequence[str], shown: int) -> str:
    """`a, b, c and 4 more`."""
    if len(items) <= shown + 1:
        return ", ".join(items)
    return f"{', '.join(items[:shown])} and {len(items) - shown} more"


def counted(count: int, noun: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ordinal(number: int) -> str:
    """1 is `first`, 12 is `12th`."""
    if 1 <= number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    last = number % 10 if number % 100 not in (11, 12, 13) else 0
    return f"{number}{('th', 'st', 'nd', 'rd')[last] if last < 4 else 'th'}"


def ranges(numbers: Iterable[int]) -> str:
    """`3, 5..9, 12`: numbers in order, runs drawn together."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}..{last}" if last > first else f"{first}" for first, last in runs]
    return elided(texts, 6)


def at_positions(positions: Sequence[int]) -> str:
    return f"{'position' if len(set(positions)) == 1 else 'positions'} {ranges(positions)}"


def short_key(key: Any) -> str:
    return shortened(str(key), 10)


def phrase(event: Event) -> str:
    """What an event did to its block or request, without naming that one again where it can."""
    match event:
        case BlockAllocated():
            return f"allocated to {event.request} at index {event.index}"
        case BlockShared():
            under = "by a fork" if event.key is None else f"under key {short_key(event.key)}"
            count = counted(event.ref_count, "holder")
            return f"shared with {event.request} at index {event.index} {under}, {count}"
        case BlockReleased():
            where = "" if event.index is None else f" at index {event.index}"
            return f"released by {event.request}{where}, {counted(event.ref_count, 'holder')} left"
        case BlockFreed():
            return "freed, and kept in the prefix index" if event.cached else "freed"
        case BlockRegistered():
            by = "" if event.request is None else f" by {event.request}"
            return f"registered{by} under key {short_key(event.key)}"
        case BlockUnregistered():
            return f"key {short_key(event.key)} left the prefix index ({event.reason})"
        case BlockCopied():
            slots = counted(event.slots, "slot")
            return f"{slots} copied from block {event.source} to block {event.destination}"
        case BlockScrubbed():
            return f"scrubbed ({event.how})"
        case BlockDigested():
            return f"digest {short_key(event.digest)} at {event.at}"
        case _:
            return _phrase_of_request(event)


def _phrase_of_request(event: Event) -> str:
    match event:
        case RequestAdded():
            tenant = "" if event.tenant is None else f", tenant {event.tenant}"
            return f"added with {counted(len(event.prompt_tokens), 'prompt token')}{tenant}"
        case RequestForked():
            return f"forked from {event.parent} with {counted(event.tokens, 'token')}"
        case RequestPreempted():
            return "preempted" + ("" if event.reason is None else f": {event.reason}")
        case RequestFinished():
            return f"finished ({event.reason})"
        case RequestRevised():
            return f"revised: {counted(event.tokens_kept, 'token')} kept"
        case PrefixLookedUp() if event.blocks:
            hit = counted(event.hit_tokens, "token")
            return f"looked up its prefix: {hit} in blocks {ranges(event.blocks)}"
        case PrefixLookedUp():
            because = f" ({event.missed_because})" if event.missed_because else ""
            return f"looked up its prefix: nothing there{because}"
        case _:
            return type(event).__name__
