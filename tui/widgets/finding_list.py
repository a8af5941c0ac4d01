"""What the checks found, culprits first; standing on one goes there."""

from __future__ import annotations

from collections.abc import Sequence

from ...replay.verdict import Report
from ..messages import Seek
from ..presenters.blame import place_of
from ..presenters.findings import finding_row
from ..presenters.spans import Row, counted
from ..session import Scene
from ..tape import Tape
from .lines import LineList, note

CHECKING = "checking the trace…"
ALL_WELL = "Every read is accounted for: no finding."
SO_FAR = "Every read is accounted for so far; the run goes on."


class FindingList(LineList):
    def __init__(self, tape: Tape, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tape = tape
        self._scene: Scene | None = None
        self._notes: Sequence[str] = (CHECKING,)
        self._places: list[int] = []
        self.border_title = "findings"

    def take(self, report: Report, problems: Sequence[str], *, is_live: bool = False) -> None:
        """What was found, or else why nothing could be; of a run that goes on, what so far."""
        self._notes = () if is_live else (*report.missing, *problems)
        if not report.findings and not self._notes:
            self._notes = (SO_FAR if is_live else ALL_WELL,)
        self._places = [place_of(finding) for finding in report.findings]
        roots = len(report.roots)
        also = len(report.findings) - roots
        tail = f", {also} more" if also else ""
        found = f"{counted(roots, 'root')}{tail}" if report.findings else "none"
        self.border_title = f"findings · {found}"

    def show(self, scene: Scene) -> None:
        self._scene = scene
        count = len(self._places) + len(self._notes)
        cursor = self._cursor_at(scene.seq)
        self.set_lines(count, cursor, (scene.names, scene.blame), margin=0)

    def _cursor_at(self, seq: int) -> int | None:
        """The finding at this position; the one that the cursor is on, if it is one of them."""
        cursor = self.cursor
        if cursor is not None and self._places[cursor : cursor + 1] == [seq]:
            return cursor
        return self._places.index(seq) if seq in self._places else None

    def row(self, index: int, width: int) -> Row:
        if self._scene is None or index >= len(self._places):
            return note(self._notes[index - len(self._places)])
        finding = self._scene.blame.findings[index]
        culprit = self.tape.get(self._places[index])
        position = finding.position if culprit is None else culprit.position
        return finding_row(finding, position, self._scene.names)

    def stood_on(self, index: int, row: Row) -> None:
        self.picked(index, row)

    def picked(self, index: int, row: Row) -> None:
        if row.seq is not None:
            self.post_message(Seek(row.seq))
