"""The steps of a run as columns: how many tokens of which phase, and what went wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..overview import StepSummary
from .blame import CULPRIT, DETECTED, Blame
from .spans import Span

PREEMPTED = "×"
BARS = " ▁▂▃▄▅▆▇█"
WIDEST_COLUMN = 4
BAR_LINES = 2


class StepColumn(NamedTuple):
    """One step, a column of the timeline, top line first."""

    mark: Span
    bars: tuple[str, ...]
    role: str


def column_width(steps: int, width: int) -> int:
    """As wide as lets all steps be seen at once, if they can be."""
    return max(1, min(WIDEST_COLUMN, width // max(steps, 1)))


def column(step: StepSummary, most_tokens: int, blame: Blame) -> StepColumn:
    return StepColumn(_mark(step, blame), _bars(step, most_tokens), phase_role(step))


def most_tokens(steps: Sequence[StepSummary]) -> int:
    return max((step.prefill + step.decode for step in steps), default=0)


def phase_role(step: StepSummary) -> str:
    if step.prefill and step.decode:
        return "phase.mixed"
    return "phase.prefill" if step.prefill else "phase.decode"


def _mark(step: StepSummary, blame: Blame) -> Span:
    mark = blame.marks_in(step.first_seq, step.last_seq)
    if mark is not None:
        return Span(CULPRIT if mark == "culprit" else DETECTED, "bad")
    return Span(PREEMPTED, "warn") if step.preempted else Span(" ")


def _bars(step: StepSummary, most: int) -> tuple[str, ...]:
    """The height grows with the square root, so that a decode step beside a prefill shows."""
    tokens = step.prefill + step.decode
    levels = BAR_LINES * (len(BARS) - 1)
    height = round(levels * (tokens / most) ** 0.5) if most else 0
    height = max(height, 1) if tokens else 0
    full = len(BARS) - 1
    return tuple(
        BARS[min(max(height - full * line, 0), full)] for line in range(BAR_LINES - 1, -1, -1)
    )


def ruler(steps: Sequence[StepSummary], column: int) -> str:
    """Step numbers under their columns, as many as have room."""
    spacing = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200) if n * column >= 7)
    out = [" "] * (len(steps) * column)
    for index, step in enumerate(steps):
        if step.step % spacing and index:
            continue
        label = str(step.step)
        at = index * column
        if at + len(label) <= len(out) and all(c == " " for c in out[max(at - 1, 0) : at + 1]):
            out[at : at + len(label)] = label
    return "".join(out)
