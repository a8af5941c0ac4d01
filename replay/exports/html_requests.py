"""The requests of a run in the page: what each asked and got, and its life along the steps."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from ..verdict import Report
from .elements import element
from .run_facts import RequestFacts, RunFacts, Stretch

REQUESTS_SHOWN = 1_000
WIDTH = 1_000
"""Of a life, in units of its drawing."""

SHAPES = {"waiting": (5, 3), "prefill": (0, 13), "decode": (3, 7), "preempted": (5, 3)}
"""Phase -> top and height: told apart without their colours."""

_COLUMNS = (
    "Request",
    "Rank",
    "Tenant",
    "Prompt",
    "Cached",
    "Sampled",
    "Preempted",
    "Ended",
    "Life",
)
_NUMBERS = ("Rank", "Prompt", "Cached", "Sampled", "Preempted")


def requests_table(facts: RunFacts, report: Report) -> list[Element]:
    if not facts.requests:
        return []
    places = {finding.victim: _step(finding.position) for finding in reversed(report.findings)}
    shown = list(facts.requests.values())[:REQUESTS_SHOWN]
    columns = [name for name in _COLUMNS if name != "Rank" or len(facts.ranks) > 1]
    heads = [
        element("th", name, scope="col", class_="number" if name in _NUMBERS else None)
        for name in columns
    ]
    rows = [_row(facts, request, places.get(request.name)) for request in shown]
    caption = "Tokens of each request, and what it was doing from the first step to the last"
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
        class_="names",
    )
    made = element(
        "section",
        element("h2", "Requests"),
        _legend(bool(places)),
        element("div", table, class_="scroll"),
    )
    more = len(facts.requests) - len(shown)
    if more:
        made.append(element("p", f"And {more} more requests."))
    return [made]


def _step(position: str) -> int:
    return int(position.partition(":")[0])


def _row(facts: RunFacts, request: RequestFacts, harmed_in: int | None) -> Element:
    counts = (
        request.prompt_tokens,
        request.cached_tokens,
        request.sampled_tokens,
        request.preemptions,
    )
    numbers = [element("td", "-" if n is None else str(n), class_="number") for n in counts]
    return element(
        "tr",
        element("th", request.name, scope="row"),
        element("td", str(request.rank), class_="number") if len(facts.ranks) > 1 else None,
        element("td", request.tenant or "-"),
        *numbers,
        element("td", request.outcome or "not ended", class_="place"),
        element("td", _life(facts, request, harmed_in)),
    )


def _life(facts: RunFacts, request: RequestFacts, harmed_in: int | None) -> Element:
    last = max(facts.last_step, 1)
    said = ", ".join(f"{s.phase} {_steps(s)}" for s in request.stretches[:12])
    drawing = element(
        "svg",
        class_="life",
        viewBox=f"0 0 {WIDTH} 13",
        preserveAspectRatio="none",
        role="img",
        aria_label=said or "never scheduled",
    )
    for stretch in request.stretches:
        top, height = SHAPES.get(stretch.phase, SHAPES["waiting"])
        start = _x(stretch.first - 1, last)
        bar = element(
            "rect",
            element("title", f"{stretch.phase}, {_steps(stretch)}"),
            class_=stretch.phase,
            x=start,
            y=top,
            width=max(round(_x(stretch.last, last) - start, 1), 1),
            height=height,
        )
        drawing.append(bar)
    if harmed_in is not None:
        x = _x(harmed_in - 0.5, last)
        mark = element("title", f"a finding in step {harmed_in}")
        drawing.append(element("line", mark, class_="mark", x1=x, x2=x, y1=0, y2=13))
    return drawing


def _x(step: float, last: int) -> float:
    return round(max(step, 0) / last * WIDTH, 1)


def _steps(stretch: Stretch) -> str:
    if stretch.first == stretch.last:
        return f"step {stretch.first}"
    return f"steps {stretch.first} to {stretch.last}"


def _legend(marks: bool) -> Element:
    items = [
        element("li", _sample(element("rect", class_=phase, x=0, y=y, width=22, height=h)), phase)
        for phase, (y, h) in SHAPES.items()
    ]
    if marks:
        line = element("line", class_="mark", x1=11, x2=11, y1=0, y2=13)
        items.append(element("li", _sample(line), "a finding about it"))
    return element("ul", *items, class_="legend")


def _sample(shape: Element) -> Element:
    return element("svg", shape, class_="sample", viewBox="0 0 22 13", aria_hidden="true")
