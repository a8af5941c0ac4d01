"""A list that renders only the lines that are seen, however many there are."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..presenters.spans import Row, Span
from .styles import BASE, ON_CURSOR, blank, strip_of


class LineList(ScrollView, inherit_bindings=False, can_focus=True):
    """Subclasses say what line `index` is, and what it means to stand on it or to pick it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("enter", "pick", "Pick", show=False),
    ]

    GRAIN: ClassVar[int] = 1
    """A list that doesn't fit grows by this many lines, which leaves empty ones at its end."""

    DEFAULT_CSS = """
    LineList {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.count = 0
        self.cursor: int | None = None
        self._made_of: object = None

    # --- for subclasses ---------------------------------------------------------------------------

    def row(self, index: int, width: int) -> Row:
        """The line of that index, made for that width."""
        raise NotImplementedError

    def stood_on(self, index: int, row: Row) -> None:
        """The cursor was moved here by a key."""

    def picked(self, index: int, row: Row) -> None:
        """Enter, or a click."""

    # --- for owners -------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Cells of a line, beside the scrollbar."""
        return self.scrollable_content_region.width

    def set_lines(
        self, count: int, cursor: int | None, made_of: object, *, margin: int = 2
    ) -> None:
        """Shows `count` lines and scrolls as little as shows the cursor with its neighbours.

        `made_of` is what the lines are made of: while it is equal, nothing is drawn again.
        """
        is_changed = (count, cursor) != (self.count, self.cursor) or made_of != self._made_of
        self.count, self.cursor, self._made_of = count, cursor, made_of
        self._fit()
        if cursor is not None:
            self._reveal(cursor, margin)
        if is_changed:
            self.refresh()

    # --- how --------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        self._fit()
        if self.cursor is not None:
            self._reveal(self.cursor, 2)

    def _fit(self) -> None:
        """Another virtual size costs a new layout of the screen, so it changes in few steps."""
        seen = self.size.height
        grains = -(-(self.count - seen) // self.GRAIN)
        self.virtual_size = Size(self.width, seen + max(grains, 0) * self.GRAIN)

    def render_line(self, y: int) -> Strip:
        index = self.scroll_offset.y + y
        width = self.width
        if not 0 <= index < self.count:
            return blank(width)
        line = self.row(index, width).line
        return strip_of(line, width, ON_CURSOR if index == self.cursor else BASE)

    def action_move(self, by: int) -> None:
        if self.count:
            index = 0 if self.cursor is None else self.cursor + by
            self._stand_on(min(max(index, 0), self.count - 1))

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(self.size.height - 2, 1))

    def action_pick(self) -> None:
        if self.cursor is not None and self.cursor < self.count:
            self.picked(self.cursor, self.row(self.cursor, self.width))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        index = None if offset is None else self.scroll_offset.y + offset.y
        if index is not None and index < self.count:
            self._put_cursor(index)
            self.picked(index, self.row(index, self.width))

    def _stand_on(self, index: int) -> None:
        self._put_cursor(index)
        self.stood_on(index, self.row(index, self.width))

    def _put_cursor(self, index: int) -> None:
        self.cursor = index
        self._reveal(index, 2)
        self.refresh()

    def _reveal(self, index: int, margin: int) -> None:
        height = max(self.size.height, 1)
        margin = min(margin, (height - 1) // 2)
        top = self.scroll_offset.y
        if index < top + margin:
            top = index - margin
        elif index >= top + height - margin:
            top = index - height + 1 + margin
        top = min(max(top, 0), max(self.count - height, 0))
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False, force=True)


def note(text: str, role: str = "dim") -> Row:
    """A line that says why there are no others."""
    return Row((Span(text, role),))
