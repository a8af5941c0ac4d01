"""Findings in the page: each incident with its chain and the pool around it, then all of them."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from ..advice import ADVICE
from ..findings import Finding
from ..incidents import Incident, incidents
from ..links import Link, headline, links_of
from ..pieces import Pieces
from ..pool_strip import LETTERS, SIGNS, TORN, Strip, strip_around
from ..provenance import Chain, chain
from ..rank_view import Ranks
from ..source import EventSource
from ..timeline import Timeline
from ..verdict import Report
from ..wording import elided, named
from .elements import element, filled
from .html_style import OWNERS

INCIDENTS_SHOWN = 25
FINDINGS_SHOWN = 200
NAMES_SHOWN = 12


def incidents_of(source: EventSource, report: Report) -> list[Element]:
    """A section with an article for each incident, roots first."""
    found = incidents(report)
    if not found:
        return []
    ranks, pieces = Ranks(Timeline(source)), Pieces.of(source)
    articles = [
        _incident(number, incident, ranks.at(incident.root.seq), report, pieces)
        for number, incident in enumerate(found[:INCIDENTS_SHOWN], start=1)
    ]
    more = len(found) - INCIDENTS_SHOWN
    if more > 0:
        articles.append(element("p", f"And {more} more, among the findings below."))
    title = "What was done wrong" if len(found) == 1 else f"The {len(found)} things done wrong"
    return [element("section", element("h2", title), *articles)]


def _incident(
    number: int, incident: Incident, timeline: Timeline, report: Report, pieces: Pieces
) -> Element:
    links = chain(timeline, incident.shown, incident.cause)
    _, said, names = headline(incident, links, report)
    made = element(
        "article",
        element("h3", f"{said[:1].upper()}{said[1:]} ", element("span", names, class_="tag bad")),
        _chain(links_of(timeline, incident, links, pieces)),
        id=f"incident-{number}",
    )
    if incident.affected:
        affected = elided([named(name) for name in incident.affected], NAMES_SHOWN)
        filled(made, element("p", f"Also affected: {affected}."))
    return filled(made, *_pool(timeline, links))


def _chain(links: Iterable[Link]) -> Element:
    rows: list[Element] = []
    label = ""
    for link in links:
        repeated = not link.label
        label = link.label or label
        rows.append(_link(link, label, repeated))
    return element(
        "div",
        element(
            "table",
            element("caption", "From the harm back to the decision that allowed it"),
            element(
                "thead",
                element(
                    "tr",
                    *(element("th", name, scope="col") for name in ("Link", "Position", "What")),
                ),
            ),
            element("tbody", *rows),
        ),
        class_="scroll",
    )


def _link(link: Link, label: str, repeated: bool) -> Element:
    name = f"{label[:1].upper()}{label[1:].lower()}"
    shown: Element | str = element("span", name, class_="hidden") if repeated else name
    place = element("code", link.position) if link.position else "-"
    return element(
        "tr",
        element("th", shown, scope="row"),
        element("td", place if link.position else "", class_="place"),
        element("td", link.text),
        class_="culprit" if link.is_culprit else None,
    )


# --- the pool -------------------------------------------------------------------------------------


def _pool(timeline: Timeline, links: Chain) -> list[Element]:
    if links.block is None or links.block < 0:
        return []
    seq, position = (
        (links.read.seq, links.read.position)
        if links.read
        else (links.finding.seq, links.finding.position)
    )
    strip = strip_around(timeline.state_at(seq), links.group, links.block)
    caption = f"The pool at {position}, around block {links.block}"
    rows = [_pool_row(row, strip) for row in strip.rows]
    table = element(
        "table", element("caption", caption), element("tbody", *rows), class_="pool mono"
    )
    return [element("div", table, class_="scroll"), _legend(strip)]


def _pool_row(numbers: list[int], strip: Strip) -> Element:
    head = element("th", f"{numbers[0]} to {numbers[-1]}", scope="row")
    return element("tr", head, *(_cell(number, strip) for number in numbers))


def _cell(number: int, strip: Strip) -> Element:
    sign = strip.sign(number)
    marked = "marked" if number == strip.block else ""
    classes = " ".join(name for name in (_look(sign), marked) if name)
    holders = dict.fromkeys(holder.request for holder in strip.pool.block(number).holders)
    held = f", held by {elided(list(holders), 6)}" if holders else ""
    meaning = dict(SIGNS).get(sign)
    told = f"block {number}" + (f": {meaning}" if meaning else "") + held
    return element("td", sign, class_=classes or None, title=told)


def _look(sign: str) -> str:
    if sign in LETTERS:
        return f"owner{LETTERS.index(sign) % OWNERS}"
    return "bad" if sign == TORN else "muted"


def _legend(strip: Strip) -> Element:
    keys = [(letter, _look(letter), named(name)) for name, letter in strip.letters.items()]
    used = {cell.sign for cell in strip.cells.values()}
    keys += [(sign, _look(sign), meaning) for sign, meaning in SIGNS if sign in used]
    items = [
        element("li", element("span", sign, class_=f"key mono {look}", aria_hidden="true"), meaning)
        for sign, look, meaning in keys
    ]
    holders = dict.fromkeys(holder.request for holder in strip.pool.block(strip.block).holders)
    names = elided([named(name) for name in holders], NAMES_SHOWN) if holders else "nobody"
    marked = element("li", element("strong", f"Block {strip.block}: "), f"held by {names}")
    return element("ul", *items, marked, class_="legend")


# --- all of them ----------------------------------------------------------------------------------


def advice(report: Report) -> list[Element]:
    """What to do about each class that was found, once."""
    classes = dict.fromkeys(finding.fault_class or "" for finding in report.findings)
    known = [(name, ADVICE[name]) for name in classes if name in ADVICE]
    if not known:
        return []
    made: list[Element] = []
    for name, told in known:
        box = element(
            "div",
            element("h3", f"{name}: {told.name}"),
            element("p", told.wrong),
            element("p", element("strong", "To mend: "), told.look),
            class_="advice",
        )
        if told.meanwhile:
            filled(box, element("p", element("strong", "Until then: "), told.meanwhile))
        made.append(box)
    return [element("section", element("h2", "What to do about it"), *made)]


def all_findings(source: EventSource, report: Report) -> list[Element]:
    if not report.findings:
        return []
    shown = report.findings[:FINDINGS_SHOWN]
    names = ("Shown at", "Decided at", "Check", "Class", "Victim", "Source", "What")
    table = element(
        "table",
        element("caption", "Every finding, by the decision that it comes from; roots are first"),
        element("thead", element("tr", *(element("th", name, scope="col") for name in names))),
        element("tbody", *(_finding(source, finding) for finding in shown)),
    )
    made = element("section", element("h2", "All findings"), element("div", table, class_="scroll"))
    more = len(report.findings) - len(shown)
    if more:
        filled(made, element("p", f"And {more} more: `kvrewind check` lists them all."))
    return [made]


def _finding(source: EventSource, finding: Finding) -> Element:
    culprit = "-" if finding.culprit_seq is None else source.at(finding.culprit_seq).position
    check = element("td", finding.check, " ")
    if finding.root:
        filled(check, element("span", "root", class_="tag bad"))
    return element(
        "tr",
        element("td", element("code", finding.position), class_="place"),
        element("td", element("code", culprit), class_="place"),
        check,
        element("td", finding.fault_class or "-"),
        element("td", finding.victim or "-"),
        element("td", finding.source or "-"),
        element("td", finding.explanation),
    )
