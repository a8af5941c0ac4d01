"""Every key, and what the signs mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..presenters.legend import help_lines
from ..widgets.styles import text_of


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide") as dialog:
            dialog.border_title = "keys and signs"
            dialog.border_subtitle = "esc close"
            yield Static(text_of(help_lines()))
