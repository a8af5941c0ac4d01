"""Everything known of the event or block under the cursor; lines with a position lead there."""

from __future__ import annotations

from collections.abc import Sequence

from ..messages import BlockPicked, RequestPicked, Seek
from ..presenters.inspector import Inspected, inspect
from ..presenters.spans import Row
from ..session import Scene
from .lines import LineList, note


class Inspector(LineList):
    GRAIN = 8

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._scene: Scene | None = None
        self._shown: tuple[int, int | None] | None = None
        self._chain: Sequence[Row] = ()
        self._history: Sequence[Row] = ()
        self._rows: list[Row] = []
        self._width = 0

    def show(self, scene: Scene) -> None:
        shown = (scene.seq, scene.block)
        if shown != self._shown:
            self._shown = shown
            self._chain, self._history = (), ()
            self.cursor = None
            self.scroll_to(y=0, animate=False, force=True)
        self._scene = scene
        self.border_title = f"inspector · {scene.envelope.position}"
        self._lay_out()

    def explain(self, chain: Sequence[Row], history: Sequence[Row]) -> None:
        """What a worker has found out about what is shown."""
        self._chain, self._history = chain, history
        self._lay_out()

    def row(self, index: int, width: int) -> Row:
        if width != self._width:
            self._lay_out()
        return self._rows[index] if index < len(self._rows) else note("")

    def _lay_out(self) -> None:
        self._width = self.width
        scene = self._scene
        if scene is None:
            return
        if scene.state is None:
            self._rows = [note(f"folding the events up to {scene.envelope.position} …")]
        else:
            inspected = Inspected(
                scene.envelope,
                scene.state,
                scene.blame,
                scene.block,
                scene.is_block_picked,
                self._chain,
                self._history,
            )
            self._rows = inspect(inspected, scene.names, self._width)
        self.set_lines(len(self._rows), self.cursor, self._rows)

    def picked(self, index: int, row: Row) -> None:
        if row.seq is not None:
            self.post_message(Seek(row.seq))
        elif row.block is not None:
            self.post_message(BlockPicked(row.block))
        elif row.request is not None:
            self.post_message(RequestPicked(row.request))
