"""The same run again under other switches: does the leak need the prefix cache, or company?"""

from __future__ import annotations

from threading import Thread
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from ..messages import TrialEnded
from ..presenters.trials import conclusion, trial_lines
from ..trials import TRIALS, Outcome, Rerun, outcome_of
from ..widgets.styles import text_of


class RerunScreen(ModalScreen[None]):
    """Runs the trials one after the other as soon as it opens; closing it stops after the one
    that is under way."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,r,q", "dismiss", "Close")]

    def __init__(self, rerun: Rerun) -> None:
        super().__init__()
        self._rerun = rerun
        self.outcomes: list[Outcome | None] = [None] * len(TRIALS)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "re-execute"
            dialog.border_subtitle = "esc close"
            yield Static(id="trials")
            yield Static(id="conclusion")

    def on_mount(self) -> None:
        self._show()
        # not a worker: whoever quits would wait for the end of a run that can't be stopped
        Thread(target=self._run_trials, daemon=True).start()

    def _run_trials(self) -> None:
        for index, trial in enumerate(TRIALS):
            outcome = outcome_of(trial, self._rerun)
            if not self.post_message(TrialEnded(index, outcome)):
                return

    def on_trial_ended(self, message: TrialEnded) -> None:
        self.outcomes[message.index] = message.outcome
        self._show()

    def _show(self) -> None:
        width = self.query_one("#trials").size.width or 72
        lines = trial_lines(TRIALS, self.outcomes, width)
        self.query_one("#trials", Static).update(text_of(lines))
        said = conclusion(TRIALS, self.outcomes, width)
        self.query_one("#conclusion", Static).update(text_of(said))
