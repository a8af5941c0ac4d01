"""A report in one file: no network, no script, readable by whoever gets it.

What it says of an incident is what `kvrewind check` says (`links`, `pool_strip`); besides, what run
it was, its requests, and what to do about each class of fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from shlex import quote
from typing import TextIO
from xml.etree.ElementTree import Element

from ..advice import VERDICTS
from ..check import Inspection
from ..source import EventSource
from ..verdict import EXIT_STATUS, Report
from ..wording import counted
from .elements import element, filled, serialized
from .html_charts import pool_chart
from .html_findings import advice, all_findings, incidents_of
from .html_requests import requests_table
from .html_style import stylesheet
from .run_facts import RunFacts

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
OUR_ENGINE = "kvrewind"


def write_html(
    source: EventSource, stream: TextIO, title: str, problems: Sequence[str] = ()
) -> Report:
    """Write the page; the report that it shows.

    `title` is the name of the trace, `problems` what its reader found missing or damaged.
    """
    inspection, facts = Inspection(), RunFacts()
    for envelope in source.envelopes():
        inspection.see(envelope)
        facts.see(envelope)
    report = inspection.report(problems)
    stream.write("<!DOCTYPE html>\n")
    stream.write(serialized(_page(source, report, facts, title)))
    stream.write("\n")
    return report


def _page(source: EventSource, report: Report, facts: RunFacts, title: str) -> Element:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{report.verdict}: {title}"),
        _style(),
    )
    body = element(
        "body", _header(facts, title), element("main", *_main(source, report, facts, title))
    )
    return element("html", head, filled(body, _footer(title)), lang="en")


def _style() -> Element:
    """Not through `element`, which would take line ends for something that isn't seen."""
    made = element("style")
    made.text = stylesheet()
    return made


def _main(source: EventSource, report: Report, facts: RunFacts, title: str) -> list[Element]:
    return [
        _verdict(source, report, facts, title),
        *_missing(report),
        *incidents_of(source, report),
        *advice(report),
        *pool_chart(source, facts, report),
        *requests_table(facts, report),
        *all_findings(source, report),
        *_switches(facts),
    ]


def _header(facts: RunFacts, title: str) -> Element:
    made = element("header", element("h1", f"What happened in {title}"))
    run = facts.header
    told = [
        ("Requests", str(len({request.name for request in facts.requests.values()}))),
        ("Steps", str(facts.last_step)),
        ("Events", f"{facts.events:,}"),
    ]
    if run is not None:
        told = [
            ("Engine", f"{run.engine} {run.engine_version}"),
            ("Model", run.model),
            ("Device", f"{run.device}, {run.dtype}"),
            ("Pool", f"{run.num_blocks} blocks of {run.block_size} tokens"),
            ("Started", run.wall_clock),
            *told,
        ]
    if len(facts.ranks) > 1:
        told.append(("Ranks", ", ".join(map(str, sorted(facts.ranks)))))
    return filled(made, _facts(told))


def _verdict(source: EventSource, report: Report, facts: RunFacts, title: str) -> Element:
    look = {0: "good", 1: "bad"}.get(EXIT_STATUS[report.verdict], "warn")
    told = VERDICTS[report.verdict]
    if report.findings:
        roots = len(report.roots)
        of_them = f", {roots} of them {'a root' if roots == 1 else 'roots'}" if roots else ""
        told += f" There {'is' if len(report.findings) == 1 else 'are'} "
        told += f"{counted(len(report.findings), 'finding')}{of_them}."
    return element(
        "section",
        element("h2", "Verdict", class_="hidden"),
        element("p", report.verdict, class_="word"),
        element("p", told),
        *_next(source, report, facts, title),
        class_=f"verdict {look}",
    )


def _next(source: EventSource, report: Report, facts: RunFacts, title: str) -> list[Element]:
    """What to type, where there is something to look at."""
    if not report.findings:
        return []
    first = report.findings[0]
    seq = first.seq if first.culprit_seq is None else first.culprit_seq
    lines = [f"kvrewind open {quote(title)} {source.at(seq).position}"]
    is_ours = facts.header is not None and facts.header.engine == OUR_ENGINE
    if is_ours and len(facts.ranks) == 1:
        lines.append(f"kvrewind bisect {quote(title)}")
    return [
        element("p", "What to type next:", class_="small"),
        element("pre", element("code", "\n".join(lines))),
    ]


def _missing(report: Report) -> list[Element]:
    if not report.missing:
        return []
    listed = element("ul", *(element("li", sentence) for sentence in report.missing))
    return [element("section", element("h2", "What was not recorded"), listed)]


def _switches(facts: RunFacts) -> list[Element]:
    run = facts.header
    if run is None:
        return []
    told = [
        (str(name), _said(value)) for name, value in (*run.config.items(), *run.versions.items())
    ]
    return [element("section", element("h2", "How it was run"), _facts(told))]


def _facts(told: Iterable[tuple[str, str]]) -> Element:
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in told]
    return element("dl", *pairs, class_="facts")


def _said(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case None | [] | {}:
            return "-"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _footer(title: str) -> Element:
    said = (
        f"Written by kvrewind {version('kvrewind')} from {title}. This page needs no network and "
        "runs no script. Positions are step:seq, as every kvrewind command takes them."
    )
    return element("footer", element("p", said, class_="muted small"))
