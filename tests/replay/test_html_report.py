"""The HTML report: one file that says what `check` says, and that nobody's text can break."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.events import Envelope, PiecesDefined, RequestAdded, RequestFinished
from kvrewind.recorder.jsonl import read_jsonl, to_line
from kvrewind.replay.advice import ADVICE, VERDICTS
from kvrewind.replay.check import check
from kvrewind.replay.exports import html_findings
from kvrewind.replay.exports.html import write_html
from kvrewind.replay.exports.html_style import DARK, LIGHT, OWNERS, stylesheet
from kvrewind.replay.incidents import incidents
from kvrewind.replay.links import links_of
from kvrewind.replay.pieces import Pieces
from kvrewind.replay.provenance import chain
from kvrewind.replay.source import EnvelopeList
from kvrewind.replay.timeline import Timeline
from kvrewind.replay.verdict import PRECEDENCE
from recorded import recorded
from strategies import traces

LEAK = recorded("key-length-only")
VOID = ("meta", "link", "br", "hr", "img", "input", "col")


def written(envelopes: Sequence[Envelope], title: str = "leak.kvtrace", *problems: str) -> str:
    stream = io.StringIO()
    write_html(EnvelopeList(envelopes), stream, title, problems)
    return stream.getvalue()


class Page(HTMLParser):
    """What a browser makes of a page; fails where tags don't pair."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        assert text.startswith("<!DOCTYPE html>\n<html lang=")
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for within, text in self.texts if within and within[-1] == tag]

    @property
    def text(self) -> str:
        return " ".join(text for within, text in self.texts if "style" not in within)


def renamed(envelopes: Sequence[Envelope], old: str, new: str) -> list[Envelope]:
    """The same run with another name for a request."""
    quoted = to_line(Envelope(0, 0, 0, 0, RequestFinished(request=new, reason="eos")))
    spelled = re.search(r'"request":(".*?"),"reason', quoted)
    assert spelled
    lines = [to_line(envelope).replace(f'"{old}"', spelled[1]) for envelope in envelopes]
    return list(read_jsonl(io.StringIO("\n".join(lines)), "renamed"))


@given(traces())
@settings(max_examples=40)
def test_any_events_at_all_give_a_page(envelopes: list[Envelope]) -> None:
    Page(written(envelopes))


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_each_incident_is_told_with_every_link_and_its_position(fault: str) -> None:
    envelopes = recorded(fault)
    page = Page(written(envelopes))
    report, timeline = check(envelopes), Timeline(EnvelopeList(envelopes))
    pieces = Pieces.of(timeline.source)
    found = incidents(report)
    assert found
    cells, places = page.text_of("td"), page.text_of("code")
    for incident in found:
        links = chain(timeline, incident.shown, incident.cause)
        for link in links_of(timeline, incident, links, pieces):
            assert link.text in cells
            assert link.position is None or link.position in places
    for finding in report.findings[: html_findings.FINDINGS_SHOWN]:
        assert finding.explanation in cells
        assert finding.position in places
    told = ADVICE[FAULTS[[f.name for f in FAULTS].index(fault)].fault_class]
    assert told.look in page.text


def test_the_pool_is_drawn_around_the_block_with_a_legend() -> None:
    page = Page(written(LEAK))
    (marked,) = [td for td in page.all("td") if "marked" in (td.get("class") or "")]
    assert marked["title"] == "block 2: shared, held by r0, r1, r2"
    assert "The pool at 2:60, around block 2" in page.text_of("caption")
    legend = page.text_of("li")
    assert {"r0", "r1", "r2", "shared", "free"} <= {item.strip() for item in legend}


def test_the_first_lines_say_verdict_run_and_what_to_type() -> None:
    page = Page(written(LEAK, "my run.kvtrace"))
    assert page.text_of("title")[0] == "contaminated: my run.kvtrace"
    assert page.text_of("h1") == ["What happened in my run.kvtrace"]
    assert VERDICTS["contaminated"] in page.text
    assert "kvrewind open 'my run.kvtrace' 2:41\nkvrewind bisect 'my run.kvtrace'" in page.text


def test_a_clean_run_is_told_as_one() -> None:
    page = Page(written(recorded()))
    assert VERDICTS["clean"] in page.text
    assert "All findings" not in page.text_of("h2")
    assert "kvrewind bisect" not in page.text
    assert {"r0", "r7"} <= set(page.text_of("th"))


def test_what_was_not_recorded_is_said() -> None:
    page = Page(written(recorded()[:-1], "cut.kvtrace", "the file <ends> early"))
    assert "the file <ends> early" in page.text_of("li")
    assert VERDICTS["incomplete"] in page.text


def test_requests_are_listed_with_what_they_got() -> None:
    page = Page(written(LEAK))
    lives = [svg["aria-label"] for svg in page.all("svg") if svg.get("class") == "life"]
    assert len(lives) == len({e.event.request for e in LEAK if isinstance(e.event, RequestAdded)})
    assert lives[0] is not None
    assert lives[0].startswith("waiting step 1, prefill step 1, decode steps 2 to ")


def one_after_the_other(*runs: Sequence[Envelope]) -> list[Envelope]:
    """As a merged trace has them: each run a rank, here with nothing of the later ones before the
    first is over."""
    whole: list[Envelope] = []
    for rank, run in enumerate(runs):
        whole += [e._replace(seq=len(whole) + n, rank=rank) for n, e in enumerate(run)]
    return whole


def test_ranks_are_told_apart() -> None:
    """Rank 1 begins after the incident of rank 0, in blocks of the same numbers."""
    page = Page(written(one_after_the_other(LEAK, recorded())))
    alone = Page(written(LEAK))
    marked = [td["title"] for td in page.all("td") if "marked" in (td.get("class") or "")]
    assert marked == ["block 2: shared, held by r0, r1, r2"]
    assert "Request r1 read 11 slots that r0 wrote " in page.text_of("h3")
    assert page.text_of("th").count("r0") == 2 * alone.text_of("th").count("r0")
    assert "Rank" in page.text_of("th")
    assert "Rank" not in alone.text_of("th")
    charts = [svg["aria-label"] for svg in page.all("svg") if svg.get("class") == "chart"]
    assert [str(label).partition(":")[0] for label in charts] == ["Rank 0", "Rank 1"]


EVIL = (
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "\"><svg onload='alert(1)'>",
    "&lt;b&gt; &amp;",
    "</title></style><style>*{display:none}",
    "]]><!--",
    "{{7*7}} ${7*7}",
)


@pytest.mark.parametrize("evil", EVIL)
def test_no_text_of_a_trace_becomes_markup(evil: str) -> None:
    harmless = Page(written(LEAK, "x.kvtrace"))
    hostile = [
        e._replace(
            event=replace(e.event, pieces=tuple(p + evil for p in e.event.pieces))
            if isinstance(e.event, PiecesDefined)
            else replace(e.event, tenant=evil)
            if isinstance(e.event, RequestAdded)
            else e.event
        )
        for e in renamed(LEAK, "r1", evil)
    ]
    page = Page(written(hostile, f"{evil}.kvtrace", evil))
    assert page.all("script") == []
    assert len(page.all("style")) == 1
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in harmless.tags} | {"ul", "li"}
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    assert evil in page.text_of("th")
    assert evil in page.text_of("td")
    assert f"What happened in {evil}.kvtrace" in page.text_of("h1")
    assert any(evil[:6] in text for text in page.text_of("td") if "positions" in text)


def test_characters_that_do_something_are_shown_as_a_mark() -> None:
    text = written(renamed(LEAK, "r1", "a\x1b[2J\x00\u202eb"))
    assert "a\ufffd[2J\ufffd\ufffdb" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)


def test_the_page_needs_no_network_and_no_script() -> None:
    page = Page(written(LEAK))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not [a for _, attributes in page.tags for a in attributes if a in ("src", "href")]
    assert "url(" not in stylesheet()
    assert "@import" not in stylesheet()
    policy = {"http-equiv": "Content-Security-Policy",
              "content": "default-src 'none'; style-src 'unsafe-inline'"}  # fmt: skip
    assert policy in page.all("meta")


def test_headings_and_tables_can_be_navigated() -> None:
    page = Page(written(LEAK))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert len(page.text_of("caption")) == len(page.all("table")) >= 4
    assert all(th.get("scope") in ("row", "col") for th in page.all("th"))
    for drawing in page.all("svg"):
        assert drawing.get("aria-hidden") == "true" or drawing.get("aria-label")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(theme: dict[str, str]) -> None:
    """4.5 for text, 3 for what is drawn (WCAG 2.2, 1.4.3 and 1.4.11)."""
    text = [(name, "page") for name in ("text", "muted", "bad", "warn", "good", "note")]
    text += [("text", f"{look}-panel") for look in ("bad", "warn", "good", "note")]
    text += [("text", "panel"), ("bad", "bad-panel"), ("warn", "warn-panel")]
    text += [("good", "good-panel")]
    text += [("text", f"owner{n}") for n in range(OWNERS)]
    for ink, ground in text:
        assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    for shape in ("waiting", "prefill", "decode", "preempted", "held"):
        assert contrast(theme[shape], theme["page"]) >= 3, shape


def test_light_dark_and_paper_have_a_style() -> None:
    assert set(LIGHT) == set(DARK)
    used = set(re.findall(r"var\(--([\w-]+)\)", stylesheet()))
    assert used <= set(LIGHT)
    assert "@media screen and (prefers-color-scheme: dark)" in stylesheet()
    assert "@media print" in stylesheet()


def test_every_verdict_and_every_class_has_its_words() -> None:
    assert set(VERDICTS) == set(PRECEDENCE)
    assert list(ADVICE) == [f"F{n:02}" for n in range(1, 21)]


def test_of_very_many_findings_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_findings, "FINDINGS_SHOWN", 3)
    page = Page(written(LEAK))
    assert f"And {len(check(LEAK).findings) - 3} more" in page.text
