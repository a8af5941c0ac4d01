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
from .styles import CURSOR, blank, strip_of

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
        self._made: tuple[tuple[Blame, int, int], list[Strip]] | None = None

    def show(self, overview: Overview, scene: Scene) -> None:
        if overview is not self._overview:
            self._made = None
            self._overview = overview
            self._most = most_tokens(overview.steps)
        here = overview.index_of(scene.seq)
        if (here, scene.blame) != (self._here, self._blame) or self._made is None:
            self.refresh()
        self._here, self._blame = here, scene.blame
        self._keep_in_sight()

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
        width, each = self.size.width, self._column
        if y >= LINES or not self._overview.steps:
            return blank(width)
        strip = self._lines(width)[y]
        if self._here is None:
            return strip
        start = (self._here - self._first) * each
        if y == LINES - 1:
            return self._with_number(strip, start, width)
        here = strip.crop(start, start + each).apply_style(HERE)
        return Strip.join([strip.crop(0, start), here, strip.crop(start + each, width)])

    def _lines(self, width: int) -> list[Strip]:
        """The lines without the present step, made once per stretch of steps that is seen."""
        key = (self._blame, self._first, width)
        if self._made is None or self._made[0] != key:
            each = self._column
            steps = self._overview.steps[self._first : self._first + width // each]
            columns = [column(step, self._most, self._blame) for step in steps]
            lines = [
                strip_of(tuple(_part(shown, y, each) for shown in columns), width)
                for y in range(LINES - 1)
            ]
            lines.append(strip_of((Span(ruler(steps, each), "dim"),), width))
            self._made = key, lines
        return self._made[1]

    def _with_number(self, strip: Strip, start: int, width: int) -> Strip:
        """The present step's number over the others', and no digit of theirs next to it."""
        assert self._here is not None
        text, label = strip.text, str(self._overview.steps[self._here].step)
        start = min(start, max(width - len(label), 0))
        before, after = text[:start], text[start + len(label) :]
        if before[-1:].isdigit():
            before = before.rstrip("0123456789").ljust(start)
        rest = after.lstrip("0123456789")
        shown = (Span(before, "dim"), Span(label, "here"), Span(rest.rjust(len(after)), "dim"))
        return strip_of(shown, width)


def _part(shown: StepColumn, y: int, each: int) -> Span:
    """One line of a column; wide columns leave a gap to the next."""
    bar = max(each - 1, 1)
    if y == 0:
        return Span(shown.mark.text.ljust(each), shown.mark.role)
    return Span((shown.bars[y - 1] * bar).ljust(each), shown.role)
