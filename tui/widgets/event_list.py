"""Every event of the trace, one line each; the cursor is the position."""

from __future__ import annotations

from ..messages import Seek
from ..presenters.blame import glyph
from ..presenters.events import kind_role, summary
from ..presenters.spans import Row, Span
from ..session import Scene
from ..tape import Tape
from .lines import LineList, note

KIND_WIDTH = 18


class EventList(LineList):
    """Line `index` is the event of that seq."""

    def __init__(self, tape: Tape, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tape = tape
        self._scene: Scene | None = None

    def show(self, scene: Scene) -> None:
        self._scene = scene
        self.border_title = f"events · {scene.seq} of {self.tape.last_seq}"
        self.set_lines(self.tape.last_seq + 1, scene.seq, (scene.names, scene.blame))

    def row(self, index: int, width: int) -> Row:
        envelope = self.tape.get(index)
        if envelope is None or self._scene is None:
            return note(f"{index:>8}  not recorded")
        seq_width, step_width = self.tape.widths
        line = (
            glyph(self._scene.blame.mark(index)),
            Span(f"{envelope.step:>{step_width}}:", "dim"),
            Span(f"{index:<{seq_width}} ", "place"),
            Span(f"{envelope.kind:<{KIND_WIDTH}}", kind_role(envelope.kind)),
            *summary(envelope, self._scene.names),
        )
        return Row(line, seq=index)

    def stood_on(self, index: int, row: Row) -> None:
        self.picked(index, row)

    def picked(self, index: int, row: Row) -> None:
        if row.seq is not None:
            self.post_message(Seek(row.seq))
