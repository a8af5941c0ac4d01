"""The block table of the selected request; standing on an entry selects its block."""

from __future__ import annotations

from ..messages import BlockPicked
from ..presenters.blocks import PoolView
from ..presenters.spans import Row
from ..presenters.tables import table_rows
from ..session import Scene
from .lines import LineList

NARROW = 44
"""Below this width a line says less."""


class TableList(LineList):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[Row] = []

    def show(self, scene: Scene) -> None:
        state, is_narrow = scene.state, self.width < NARROW
        view = PoolView(state, scene.blame, scene.request) if state else None
        self._rows = table_rows(view, scene.names, is_narrow=is_narrow) if view else []
        who = f" of {scene.request}" if scene.request else ""
        columns = "" if is_narrow else " · written by, also held by, text"
        self.border_title = f"block table{who}{columns}"
        blocks = [row.block for row in self._rows]
        cursor = blocks.index(scene.block) if scene.block in blocks else None
        self.set_lines(len(self._rows), cursor, self._rows)

    def row(self, index: int, width: int) -> Row:
        return self._rows[index]

    def stood_on(self, index: int, row: Row) -> None:
        self.picked(index, row)

    def picked(self, index: int, row: Row) -> None:
        if row.block is not None:
            self.post_message(BlockPicked(row.block))
