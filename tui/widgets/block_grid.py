"""The blocks of the pool, coloured by whose content they hold."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..messages import BlockPicked
from ..presenters.blocks import (
    LARGE_WIDTH,
    MEDIUM_WIDTH,
    TINY_WIDTH,
    BlockCell,
    PoolView,
    block_count,
    cell,
    large,
    medium,
    tiny,
)
from ..presenters.spans import Line, Span
from ..session import Scene
from .styles import blank, strip_of

WIDEST = 12

GUTTER = 5
"""For the number of a line's first block, where cells are too small for their own."""


class Shape(NamedTuple):
    """How cells are drawn."""

    width: int
    """Least width of a cell; one empty column follows it."""
    lines: int
    gap: int
    """Empty lines under a cell."""
    gutter: int


SHAPES = (
    Shape(LARGE_WIDTH, 2, 1, 0),
    Shape(LARGE_WIDTH, 2, 0, 0),
    Shape(MEDIUM_WIDTH, 1, 0, GUTTER),
    Shape(TINY_WIDTH, 1, 0, GUTTER),
)
"""Largest first: the first in which the whole pool is seen is taken, else the last."""


class Grid(NamedTuple):
    """A pool of so many cells in one shape, in so many columns of a width."""

    shape: Shape
    blocks: int
    columns: int
    width: int

    @classmethod
    def of(cls, shape: Shape, count: int, room: int) -> Grid:
        """Large cells share the room evenly and their last row is as full as can be."""
        most = max((room - shape.gutter + 1) // (shape.width + 1), 1)
        if shape.gutter:
            return cls(shape, count, most, shape.width)
        columns = -(-count // -(-count // most)) if count else most
        return cls(shape, count, columns, min((room + 1) // columns - 1, WIDEST))

    @property
    def pitch(self) -> int:
        return self.shape.lines + self.shape.gap

    @property
    def height(self) -> int:
        return -(-self.blocks // self.columns) * self.pitch - self.shape.gap

    def block_at(self, x: int, y: int) -> int | None:
        column = (x - self.shape.gutter) // (self.width + 1)
        block = y // self.pitch * self.columns + column
        return block if 0 <= column < self.columns and block < self.blocks else None


class BlockGrid(ScrollView, inherit_bindings=False, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move('up')", "Up", show=False),
        Binding("down", "move('down')", "Down", show=False),
        Binding("left", "move('left')", "Left", show=False),
        Binding("right", "move('right')", "Right", show=False),
    ]

    DEFAULT_CSS = "BlockGrid { overflow-x: hidden; scrollbar-size-vertical: 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._scene: Scene | None = None
        self._view: PoolView | None = None
        self._count = 0
        self._grid = Grid.of(SHAPES[0], 0, 0)
        self._cells: dict[int, BlockCell] = {}

    def show(self, scene: Scene) -> None:
        self._scene = scene
        self._cells = {}
        state = scene.state
        self._view = PoolView(state, scene.blame, scene.request) if state else None
        self._count = block_count(state) if state else self._count
        self._fit()
        if scene.block is not None:
            self._reveal(scene.block)
        self.border_title = self._title()
        self.refresh()

    def _title(self) -> str:
        if self._view is None:
            return "blocks"
        blocks = self._view.pool.blocks.values()
        held = sum(1 for block in blocks if block.holders)
        cached = sum(1 for block in blocks if not block.holders and block.keys)
        return f"{self._count} blocks · {held} held, {cached} cached"

    def on_resize(self, event: events.Resize) -> None:
        self._fit()

    def _fit(self) -> None:
        room, height = self.scrollable_content_region.size
        grids = [Grid.of(shape, self._count, room) for shape in SHAPES]
        self._grid = next((grid for grid in grids if grid.height <= height), grids[-1])
        self.virtual_size = Size(room, self._grid.height)

    def _reveal(self, block: int) -> None:
        """Scrolls as little as shows the block."""
        line = block // self._grid.columns * self._grid.pitch
        top, height = self.scroll_offset.y, self.size.height
        if not top <= line < top + height:
            self.scroll_to(y=max(line - height // 2, 0), animate=False, force=True)

    # --- cells ------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, grid = self.scrollable_content_region.width, self._grid
        row, line = divmod(self.scroll_offset.y + y, grid.pitch)
        first = row * grid.columns
        if self._view is None or line >= grid.shape.lines or first >= self._count:
            return blank(width)
        drawn: list[Span] = []
        if grid.shape.gutter:
            drawn.append(Span(f"{first:>4} ", "dim"))
        for block in range(first, min(first + grid.columns, self._count)):
            drawn += self._drawn(block, line)
            drawn.append(Span(" "))
        return strip_of(tuple(drawn[:-1]), width)

    def _drawn(self, block: int, line: int) -> Line:
        assert self._view is not None and self._scene is not None
        shown = self._cells.get(block)
        if shown is None:
            shown = self._cells[block] = cell(self._view, block)
        spans = self._line(shown, line)
        if block != self._scene.block:
            return spans
        return tuple(Span(span.text, f"{span.role}.picked") for span in spans)

    def _line(self, shown: BlockCell, line: int) -> Line:
        assert self._scene is not None
        names, grid = self._scene.names, self._grid
        if grid.shape.lines == 2:
            return large(shown, names, grid.width)[line]
        return medium(shown, names) if grid.width == MEDIUM_WIDTH else tiny(shown, names)

    # --- picking ----------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            self._pick(self._grid.block_at(offset.x, self.scroll_offset.y + offset.y))

    def action_move(self, direction: str) -> None:
        block = self._scene.block if self._scene else None
        each = self._grid.columns
        by = {"up": -each, "down": each, "left": -1, "right": 1}[direction]
        self._pick(0 if block is None else block + by)

    def _pick(self, block: int | None) -> None:
        if block is not None and 0 <= block < self._count:
            self.post_message(BlockPicked(block))
