"""The app: a trace, opened at a moment."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App

from ..recorder.reader import TraceReader
from .growth import is_live
from .screens.debugger import DebuggerScreen
from .session import Session
from .trials import Rerun, rerun_of


class KvrewindApp(App[None]):
    """Steps through an opened trace.

    `position` is `step:seq` or a seq that the trace has; without one the first culprit is opened
    when it is found, and a trace that is being written is followed. `rerun` re-executes the run
    under other switches; by default the recorded engine does. Raises NoSuchPosition.
    """

    CSS_PATH = "kvrewind.tcss"
    TITLE = "kvrewind"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-wide")]  # noqa: RUF012 -- as App has it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall"), (50, "-tower")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False

    def __init__(
        self,
        source: TraceReader,
        position: str | None = None,
        *,
        title: str | None = None,
        rerun: Rerun | None = None,
    ) -> None:
        super().__init__()
        self.session = Session(source, is_live=is_live(source))
        if position is not None:
            self.session.timeline.position(position)
        self._debugger = DebuggerScreen(
            self.session, title or source.path.name, position, rerun or rerun_of(source)
        )

    def on_mount(self) -> None:
        self.push_screen(self._debugger)
