"""The answer of a check for people, in the manner of AddressSanitizer.

What `links` says of each incident, as lines of text with styles: whoever prints them decides on
colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.text import Text

from ..recorder.events import Envelope
from ..recorder.memory import MemorySink
from .findings import Finding
from .incidents import Incident, incidents
from .links import headline, links_of
from .pieces import Pieces
from .pool_strip import pool_strip
from .provenance import Chain, chain
from .rank_view import Ranks
from .source import EventSource
from .timeline import Timeline
from .verdict import Report
from .wording import counted, elided, shortened

WIDTH = 100
LABEL_WIDTH = 18
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
    ranks = Ranks(timeline)
    lines: list[Text] = []
    for incident in found:
        own = ranks.at(incident.root.seq)
        lines += [*incident_lines(own, incident, report, pieces, width), Text()]
    lines += _others(found, report, width)
    lines += _summary(report, timeline.source, width)
    return Text("\n").join(lines)


def incident_lines(
    timeline: Timeline, incident: Incident, report: Report, pieces: Pieces, width: int = WIDTH
) -> list[Text]:
    """One incident, from the harm back to the decision."""
    links = chain(timeline, incident.shown, incident.cause)
    told: list[Text] = []
    for link in links_of(timeline, incident, links, pieces):
        style = "bold" if link.is_culprit else ""
        told += _labelled(link.label, link.text, width, style)
    return [
        *_headline(incident, links, report, width),
        *told,
        *_strip(timeline, links, width),
        *_affected(incident, width),
    ]


# --- one incident ---------------------------------------------------------------------------------


def _headline(incident: Incident, links: Chain, report: Report, width: int) -> list[Text]:
    verdict, said, names = headline(incident, links, report)
    style = dict(SEVERITY)[verdict]
    line = f"{verdict}: {said}  [{names}]"
    return [
        Text("=" * width, style="dim"),
        *(
            Text(part, style=style)
            for part in wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
        ),
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
