"""The answer of a check for people, in the manner of AddressSanitizer.

Who read, who wrote it last, who gave the block up, who was given it, and the one decision that
allowed it. Lines of text with styles: whoever prints them decides on colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from rich.text import Text

from ..recorder.events import Envelope
from ..recorder.memory import MemorySink
from .findings import Finding
from .history import Entry
from .incidents import Incident, incidents
from .pieces import Pieces
from .pool_strip import pool_strip
from .provenance import Chain, Read, Written, chain
from .reasons import reason
from .source import EventSource
from .timeline import Timeline
from .verdict import Report
from .wording import (
    at_positions,
    counted,
    elided,
    ranges,
    shortened,
)

WIDTH = 100
LABEL_WIDTH = 18
WRITERS_SHOWN = 3
ENTRIES_SHOWN = 2
NAMES_SHOWN = 8
OTHERS_SHOWN = 12
MISSING_SHOWN = 6

SEVERITY: tuple[tuple[str, str], ...] = (
    ("contaminated", "bold red"),
    ("violated", "bold yellow"),
    ("unexplained", "bold magenta"),
    ("unstable", "bold magenta"),
    ("incomplete", "bold yellow"),
    ("numeric-drift", "bold cyan"),
    ("clean", "bold green"),
)


def render(
    report: Report,
    events: Timeline | EventSource | MemorySink | Sequence[Envelope],
    width: int = WIDTH,
) -> Text:
    """The whole report, in lines of at most `width` columns (a long name may go beyond).

    A timeline that exists already spares folding the trace again. `.plain` is the bare text.
    """
    timeline = events if isinstance(events, Timeline) else Timeline(events)
    found = incidents(report)
    pieces = Pieces.of(timeline.source) if found else Pieces()
    lines: list[Text] = []
    for incident in found:
        lines += [*incident_lines(timeline, incident, report, pieces, width), Text()]
    lines += _others(found, report, width)
    lines += _summary(report, timeline.source, width)
    return Text("\n").join(lines)


def incident_lines(
    timeline: Timeline, incident: Incident, report: Report, pieces: Pieces, width: int = WIDTH
) -> list[Text]:
    """One incident, from the harm back to the decision."""
    cause = incident.cause
    links = chain(timeline, incident.shown, cause)
    return [
        *_headline(incident, links, report, width),
        *_read(links, incident.shown, width),
        *_written(links.written, pieces, width),
        *_entries("RELEASED by", links.released, links, width),
        *_entries("FREED", links.freed, links, width),
        *_given(links, width),
        *_exact(cause, width),
        *_allowed(timeline, cause, links, pieces, width),
        *_strip(timeline, links, width),
        *_affected(incident, width),
    ]


# --- one incident ---------------------------------------------------------------------------------


def _headline(incident: Incident, links: Chain, report: Report, width: int) -> list[Text]:
    root, read = incident.root, links.read
    if read is not None:
        verdict = report.verdict
        reader = "a pad row" if read.request is None else f"request {read.request}"
        slots = counted(len(read.slots), "slot")
        said = f"{reader} read {slots} that {_writers(links.written)} wrote"
    else:
        verdict = "violated" if report.verdict == "contaminated" else report.verdict
        said = root.explanation
    names = [name for name in (root.check, root.fault_class) if name]
    style = dict(SEVERITY)[verdict]
    line = f"{verdict}: {said}  [{', '.join(names)}]"
    return [
        Text("=" * width, style="dim"),
        *(
            Text(part, style=style)
            for part in wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
        ),
    ]


def _writers(written: Iterable[Written]) -> str:
    names = dict.fromkeys("a pad row" if w.request is None else w.request for w in written)
    return elided(list(names), 3) if names else "nobody"


def _read(links: Chain, shown: Finding, width: int) -> list[Text]:
    read = links.read
    if read is None:
        return _labelled("SEEN at", f"{shown.position} by {shown.check}", width)
    blocks = _blocks_read(links, read)
    who = f"row {read.row} of step {read.step} ({read.position})"
    slots = "slot" if len(read.slots) == 1 else "slots"
    what = f"{read.request or 'a pad row'}, {who}: {slots} {ranges(read.slots)}{blocks}"
    return _labelled("READ by", what, width)


def _blocks_read(links: Chain, read: Read) -> str:
    return "" if links.block is None else f" of block {links.block}"


def _written(written: Sequence[Written], pieces: Pieces, width: int) -> list[Text]:
    lines: list[Text] = []
    for index, event in enumerate(written[-WRITERS_SHOWN:]):
        who = "a pad row" if event.request is None else event.request
        where = at_positions([write.position for write in event.writes])
        text = pieces.quoted([write.token for write in event.writes])
        what = f"{who}, {where}, {text}, at {event.position} ({event.kind})"
        lines += _labelled("" if index else "last WRITTEN by", what, width)
    more = len(written) - WRITERS_SHOWN
    return lines + (
        _labelled("", f"and {counted(more, 'earlier write')}", width) if more > 0 else []
    )


def _entries(label: str, entries: Sequence[Entry], links: Chain, width: int) -> list[Text]:
    """The reader's own comes first, then what happened last."""
    reader = links.read.request if links.read else links.finding.victim
    own = [entry for entry in entries if entry.request is not None and entry.request == reader]
    chosen = {entry.seq: entry for entry in (*own[:1], *reversed(entries))}
    shown = sorted(list(chosen.values())[:ENTRIES_SHOWN])
    lines: list[Text] = []
    for index, entry in enumerate(shown):
        text = ", ".join(part for part in (_without_verb(entry), f"at {entry.position}") if part)
        lines += _labelled("" if index else label, text, width)
    more = len(entries) - len(shown)
    return lines + (_labelled("", f"and {counted(more, 'time')} more", width) if more else [])


def _without_verb(entry: Entry) -> str:
    """The label has said it already."""
    for verb in ("released by ", "allocated to ", "shared with ", "freed, and ", "freed"):
        if entry.text.startswith(verb):
            return entry.text.removeprefix(verb)
    return entry.text


def _given(links: Chain, width: int) -> list[Text]:
    """The allocation of what was read, and how the reader came to hold the block."""
    lines: list[Text] = []
    for entry in sorted({e for e in (links.allocated, links.held) if e}):
        is_new = entry.kind == "BlockAllocated"
        text = _without_verb(entry) + (f", generation {entry.generation}" if is_new else "")
        label = "ALLOCATED to" if is_new else "SHARED with"
        lines += _labelled(label, f"{text}, at {entry.position}", width)
    return lines


def _exact(root: Finding, width: int) -> list[Text]:
    """The exact index, where a mask or a row is wrong."""
    if root.row is None and root.query is None:
        return []
    named = (("row", root.row), ("query", root.query), ("key", root.key), ("slot", root.slot))
    where = ", ".join(f"{name} {value}" for name, value in named if value is not None)
    values = [
        f"{name} {_value(value)}"
        for name, value in (("expected", root.expected), ("actual", root.actual))
        if value is not None
    ]
    return _labelled(
        "EXACTLY", ": ".join(part for part in (where, ", ".join(values)) if part), width
    )


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{elided([str(item) for item in value], 8)}]"
    return shortened(str(value), 60)


def _allowed(
    timeline: Timeline, root: Finding, links: Chain, pieces: Pieces, width: int
) -> list[Text]:
    culprit = links.culprit
    if culprit is None:
        return _labelled("ALLOWED by", f"no event that was logged: {root.explanation}", width)
    why = reason(timeline, root, pieces)
    alike = len(root.culprits) - 1
    more = f", and {counted(alike, 'event')} like it" if alike > 0 else ""
    said = f"event {culprit.seq}, step {culprit.step} ({culprit.position}): {why}{more}"
    decision = root.decision or culprit.decision
    return [
        *_labelled("ALLOWED by", said, width, "bold"),
        *(_labelled("", f"decision {decision}", width) if decision else ()),
    ]


def _strip(timeline: Timeline, links: Chain, width: int) -> list[Text]:
    if links.block is None or links.block < 0:
        return []
    seq = links.read.seq if links.read else links.finding.seq
    position = links.read.position if links.read else links.finding.position
    head = Text(f"  the pool at {position}, around block {links.block}", style="dim")
    return [Text(), head, *pool_strip(timeline.state_at(seq), links.group, links.block, width)]


def _affected(incident: Incident, width: int) -> list[Text]:
    names = list(incident.affected)
    return _labelled("also affected", elided(names, NAMES_SHOWN), width) if names else []


# --- the rest -------------------------------------------------------------------------------------


def _others(found: Iterable[Incident], report: Report, width: int) -> list[Text]:
    """One line for each finding that no incident above has shown."""
    shown = {id(finding) for incident in found for finding in (incident.root, incident.shown)}
    rest = [finding for finding in report.findings if id(finding) not in shown]
    lines = [_one_line(finding, width) for finding in rest[:OTHERS_SHOWN]]
    if lines:
        of_check = Counter(finding.check for finding in rest)
        checks = ", ".join(f"{count} {check}" for check, count in of_check.most_common())
        what = "other finding" if shown else "finding"
        head = f"{counted(len(rest), what)} ({checks}):"
        lines.insert(0, Text(head, style="bold"))
    if len(rest) > OTHERS_SHOWN:
        lines.append(Text(f"  and {len(rest) - OTHERS_SHOWN} more", style="dim"))
    return lines


def _one_line(finding: Finding, width: int) -> Text:
    line = Text(f"  {finding.position:>10}  ", style="dim")
    line.append(f"{finding.check:<16} {finding.fault_class or '-':<4} ", style="yellow")
    line.append(shortened(finding.explanation, max(width - len(line), 20)), style="default")
    return line


def _summary(report: Report, source: EventSource, width: int) -> list[Text]:
    style = dict(SEVERITY)[report.verdict]
    counts = f"{counted(len(report.findings), 'finding')} in {counted(source.count, 'event')}"
    lines = [Text.assemble((report.verdict, style), f": {counts}")]
    for missing in report.missing[:MISSING_SHOWN]:
        lines += _labelled("missing", missing, width)
    if len(report.missing) > MISSING_SHOWN:
        lines += _labelled("", f"and {len(report.missing) - MISSING_SHOWN} more", width)
    return lines


def _labelled(label: str, text: str, width: int, style: str = "") -> list[Text]:
    parts = wrap(
        text, max(width - LABEL_WIDTH, 20), break_long_words=False, break_on_hyphens=False
    ) or [""]
    lines: list[Text] = []
    for index, part in enumerate(parts):
        line = Text(f"  {'' if index else label}".ljust(LABEL_WIDTH), style="bold cyan")
        lines.append(line.append(part, style=style or "default"))
    return lines
