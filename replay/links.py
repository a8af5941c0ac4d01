"""The links between the harm and the decision that allowed it, in words: what every report says.

In the manner of AddressSanitizer: who read, who wrote it last, who gave the block up, who was given
it, and the one decision that allowed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .findings import Finding
from .history import Entry
from .incidents import Incident
from .pieces import Pieces
from .provenance import Chain, Read, Written
from .reasons import reason
from .timeline import Timeline
from .verdict import Report
from .wording import at_positions, counted, elided, ranges, shortened

WRITERS_SHOWN = 3
ENTRIES_SHOWN = 2


class Link(NamedTuple):
    """One link. Of several that are alike, only the first has the label."""

    label: str
    text: str
    position: str | None = None
    """Of its event, where it is one."""
    is_culprit: bool = False


class Headline(NamedTuple):
    verdict: str
    said: str
    names: str
    """Check and class."""


def headline(incident: Incident, links: Chain, report: Report) -> Headline:
    root, read = incident.root, links.read
    if read is not None:
        verdict: str = report.verdict
        reader = "a pad row" if read.request is None else f"request {read.request}"
        slots = counted(len(read.slots), "slot")
        said = f"{reader} read {slots} that {_writers(links.written)} wrote"
    else:
        verdict = "violated" if report.verdict == "contaminated" else report.verdict
        said = root.explanation
    names = [name for name in (root.check, root.fault_class) if name]
    return Headline(verdict, said, ", ".join(names))


def links_of(
    timeline: Timeline, incident: Incident, links: Chain, pieces: Pieces
) -> Iterator[Link]:
    """From the harm back to the decision."""
    cause = incident.cause
    yield from _read(links, incident.shown)
    yield from _written(links.written, pieces)
    yield from _entries("RELEASED by", links.released, links)
    yield from _entries("FREED", links.freed, links)
    yield from _given(links)
    yield from _exact(cause)
    yield from _allowed(timeline, cause, links, pieces)


def _writers(written: Iterable[Written]) -> str:
    names = dict.fromkeys("a pad row" if w.request is None else w.request for w in written)
    return elided(list(names), 3) if names else "nobody"


def _read(links: Chain, shown: Finding) -> Iterator[Link]:
    read = links.read
    if read is None:
        yield Link("SEEN at", f"{shown.position} by {shown.check}", shown.position)
        return
    who = f"row {read.row} of step {read.step} ({read.position})"
    slots = "slot" if len(read.slots) == 1 else "slots"
    blocks = _blocks_read(links, read)
    what = f"{read.request or 'a pad row'}, {who}: {slots} {ranges(read.slots)}{blocks}"
    yield Link("READ by", what, read.position)


def _blocks_read(links: Chain, read: Read) -> str:
    return "" if links.block is None else f" of block {links.block}"


def _written(written: Sequence[Written], pieces: Pieces) -> Iterator[Link]:
    for index, event in enumerate(written[-WRITERS_SHOWN:]):
        who = "a pad row" if event.request is None else event.request
        where = at_positions([write.position for write in event.writes])
        text = pieces.quoted([write.token for write in event.writes])
        what = f"{who}, {where}, {text}, at {event.position} ({event.kind})"
        yield Link("" if index else "last WRITTEN by", what, event.position)
    more = len(written) - WRITERS_SHOWN
    if more > 0:
        yield Link("", f"and {counted(more, 'earlier write')}")


def _entries(label: str, entries: Sequence[Entry], links: Chain) -> Iterator[Link]:
    """The reader's own comes first, then what happened last."""
    reader = links.read.request if links.read else links.finding.victim
    own = [entry for entry in entries if entry.request is not None and entry.request == reader]
    chosen = {entry.seq: entry for entry in (*own[:1], *reversed(entries))}
    shown = sorted(list(chosen.values())[:ENTRIES_SHOWN])
    for index, entry in enumerate(shown):
        text = ", ".join(part for part in (_without_verb(entry), f"at {entry.position}") if part)
        yield Link("" if index else label, text, entry.position)
    more = len(entries) - len(shown)
    if more:
        yield Link("", f"and {counted(more, 'time')} more")


def _without_verb(entry: Entry) -> str:
    """The label has said it already."""
    for verb in ("released by ", "allocated to ", "shared with ", "freed, and ", "freed"):
        if entry.text.startswith(verb):
            return entry.text.removeprefix(verb)
    return entry.text


def _given(links: Chain) -> Iterator[Link]:
    """The allocation of what was read, and how the reader came to hold the block."""
    for entry in sorted({e for e in (links.allocated, links.held) if e}):
        is_new = entry.kind == "BlockAllocated"
        text = _without_verb(entry) + (f", generation {entry.generation}" if is_new else "")
        label = "ALLOCATED to" if is_new else "SHARED with"
        yield Link(label, f"{text}, at {entry.position}", entry.position)


def _exact(root: Finding) -> Iterator[Link]:
    """The exact index, where a mask or a row is wrong."""
    if root.row is None and root.query is None:
        return
    named = (("row", root.row), ("query", root.query), ("key", root.key), ("slot", root.slot))
    where = ", ".join(f"{name} {value}" for name, value in named if value is not None)
    values = [
        f"{name} {_value(value)}"
        for name, value in (("expected", root.expected), ("actual", root.actual))
        if value is not None
    ]
    yield Link("EXACTLY", ": ".join(part for part in (where, ", ".join(values)) if part))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{elided([str(item) for item in value], 8)}]"
    return shortened(str(value), 60)


def _allowed(timeline: Timeline, root: Finding, links: Chain, pieces: Pieces) -> Iterator[Link]:
    culprit = links.culprit
    if culprit is None:
        yield Link("ALLOWED by", f"no event that was logged: {root.explanation}")
        return
    why = reason(timeline, root, pieces)
    alike = len(root.culprits) - 1
    more = f", and {counted(alike, 'event')} like it" if alike > 0 else ""
    said = f"event {culprit.seq}, step {culprit.step} ({culprit.position}): {why}{more}"
    yield Link("ALLOWED by", said, culprit.position, is_culprit=True)
    decision = root.decision or culprit.decision
    if decision:
        yield Link("", f"decision {decision}")
