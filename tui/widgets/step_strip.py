"""The steps of the run, a column each: marks, tokens by phase, numbers."""

from __future__ import annotations

from rich.style import Style
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from ..messages import Seek
from ..overview import Overview
from ..presenters.blame import Blame
from ..presenters.spans import Span
from ..presenters.steps import BAR_LINES, StepColumn, column, column_width, most_tokens, ruler
from ..session import Scene
from .styles import CURSOR, strip_of

LINES = 2 + BAR_LINES
HERE = Style(bgcolor=CURSOR, bold=True)


class StepStrip(Widget):
    """Scrolls by itself, so that the present step is always seen."""

    DEFAULT_CSS = "StepStrip { height: 4; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._overview = Overview()
        self._blame = Blame()
        self._most = 0
        self._here: int | None = None
        self._first = 0

    def show(self, overview: Overview, scene: Scene) -> None:
        if overview is not self._overview:
            self._overview = overview
            self._most = most_tokens(overview.steps)
        self._blame = scene.blame
        self._here = overview.index_of(scene.seq)
        self._keep_in_sight()
        self.refresh()

    @property
    def _column(self) -> int:
        return column_width(len(self._overview.steps), self.size.width)

    def _keep_in_sight(self) -> None:
        seen = max(self.size.width // self._column, 1)
        count = len(self._overview.steps)
        if self._here is not None and not self._first + 1 <= self._here < self._first + seen - 1:
            self._first = self._here - seen // 2
        self._first = min(max(self._first, 0), max(count - seen, 0))

    def on_resize(self, event: events.Resize) -> None:
        self._keep_in_sight()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = self._first + offset.x // self._column
        if index < len(self._overview.steps):
            self.post_message(Seek(self._overview.steps[index].first_seq))

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        each = self._column
        steps = self._overview.steps[self._first : self._first + width // each]
        if y >= LINES or not steps:
            return Strip.blank(width, base)
        if y == LINES - 1:
            return self._ruler(ruler(steps, each), each, width, base)
        spans = [
            (i, _part(column(step, self._most, self._blame), y, each))
            for i, step in enumerate(steps, self._first)
        ]
        strips = [
            strip_of((span,), each, base + HERE if i == self._here else base) for i, span in spans
        ]
        return Strip.join(strips).adjust_cell_length(width, base)

    def _ruler(self, text: str, each: int, width: int, base: Style) -> Strip:
        if self._here is None:
            return strip_of((Span(text, "dim"),), width, base)
        at = (self._here - self._first) * each
        label = str(self._overview.steps[self._here].step)
        at = min(at, max(len(text) - len(label), 0))
        before, after = text[:at], text[at + len(label) :]
        if before[-1:].isdigit():
            before = before.rstrip("0123456789").ljust(at)
        if after[:1].isdigit():
            digits = len(after) - len(after.lstrip("0123456789"))
            after = " " * digits + after[digits:]
        return strip_of((Span(before, "dim"), Span(label, "here"), Span(after, "dim")), width, base)


def _part(shown: StepColumn, y: int, each: int) -> Span:
    """One line of a column; wide columns leave a gap to the next."""
    bar = max(each - 1, 1)
    if y == 0:
        return Span(shown.mark.text.ljust(each), shown.mark.role)
    return Span((shown.bars[y - 1] * bar).ljust(each), shown.role)
