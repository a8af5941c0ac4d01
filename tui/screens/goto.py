"""Asks for a position."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from ...recorder.errors import NoSuchPosition
from ...replay.timeline import Timeline


class GotoScreen(ModalScreen[int | None]):
    """Gives the seq of the position that was typed, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, timeline: Timeline, here: str) -> None:
        super().__init__()
        self._timeline = timeline
        self._here = here

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "go to"
            yield Input(placeholder="step:seq", id="position")
            yield Label(
                f"Now at {self._here}. Write step:seq as in 9:1203, a seq, or a step as in 9:",
                id="hint",
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(self._timeline.position(event.value))
        except NoSuchPosition as error:
            hint = self.query_one("#hint", Label)
            hint.update(str(error))
            hint.add_class("bad")
