"""The pool along the run, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from xml.etree.ElementTree import Element

from ..source import EventSource
from ..verdict import Report
from .elements import element
from .run_facts import PoolSample, RunFacts

WIDTH, HEIGHT = 1_000, 100
SAMPLES_DRAWN = 500


def pool_chart(source: EventSource, facts: RunFacts, report: Report) -> list[Element]:
    """Held and cached blocks by step, with a mark at each step in which something was found; a
    picture for each rank."""
    found: dict[int, set[int]] = {}
    for finding in report.findings:
        shown = source.at(finding.seq)
        found.setdefault(shown.rank, set()).add(shown.step)
    drawings: list[Element] = []
    for rank in sorted(facts.ranks):
        samples = [sample for sample in facts.pool if sample.rank == rank]
        run = facts.headers.get(rank)
        if run is not None and len(samples) > 1:
            size = max(run.num_blocks - len(set(run.sentinel_blocks)), 1) * max(len(run.groups), 1)
            name = f"Rank {rank}: at" if len(facts.ranks) > 1 else "At"
            drawings += _of_rank(samples, name, size, facts.last_step, found.get(rank, set()))
    if not drawings:
        return []
    title = element("h2", "The pool along the run")
    return [element("section", title, _legend(bool(found)), *drawings)]


def _of_rank(
    samples: Sequence[PoolSample], name: str, size: int, last_step: int, found: AbstractSet[int]
) -> list[Element]:
    thin = _thinned(samples)
    last = max(last_step, 1)
    most = max(samples, key=lambda sample: sample.held)
    said = f"{name} most {most.held} of {size} blocks were held, in step {most.step}"
    drawing = element(
        "svg",
        _area(thin, [s.held + s.cached for s in thin], size, last, "cached"),
        _area(thin, [s.held for s in thin], size, last, "held"),
        *_marks(found, last),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    told = f"{said}. From the first step to the last; full height is all blocks."
    return [element("p", told), drawing]


def _thinned(samples: Sequence[PoolSample]) -> list[PoolSample]:
    """Of many samples, the fullest of each stretch."""
    width = -(-len(samples) // SAMPLES_DRAWN)
    stretches = (samples[i : i + width] for i in range(0, len(samples), width))
    return [max(stretch, key=lambda sample: sample.held) for stretch in stretches]


def _area(
    samples: Sequence[PoolSample], values: Sequence[int], size: int, last: int, look: str
) -> Element:
    corners = [f"0,{HEIGHT}"]
    for sample, value in zip(samples, values, strict=True):
        height = HEIGHT * (1 - min(value / size, 1))
        x = round(sample.step / last * WIDTH, 1)
        corners.append(f"{x},{height:.1f}")
    corners.append(f"{corners[-1].partition(',')[0]},{HEIGHT}")
    return element("polygon", class_=look, points=" ".join(corners))


def _marks(steps: AbstractSet[int], last: int) -> list[Element]:
    marks: list[Element] = []
    for step in sorted(steps)[:SAMPLES_DRAWN]:
        x = round(step / last * WIDTH, 1)
        told = element("title", f"a finding in step {step}")
        marks.append(element("line", told, class_="mark", x1=x, x2=x, y1=0, y2=HEIGHT))
    return marks


def _legend(has_marks: bool) -> Element:
    keys = [("held", "held by requests"), ("cached", "free, in the prefix index")]
    items = [
        element(
            "li",
            element(
                "svg",
                element("rect", class_=look, x=0, y=0, width=22, height=13),
                class_="sample",
                viewBox="0 0 22 13",
                aria_hidden="true",
            ),
            meaning,
        )
        for look, meaning in keys
    ]
    if has_marks:
        line = element("line", class_="mark", x1=11, x2=11, y1=0, y2=13)
        sample = element("svg", line, class_="sample", viewBox="0 0 22 13", aria_hidden="true")
        items.append(element("li", sample, "a step with findings"))
    return element("ul", *items, class_="legend")
