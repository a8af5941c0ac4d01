"""Re-executions as a table, and what they tell together."""

from __future__ import annotations

from collections.abc import Sequence

from ..trials import Outcome, Trial
from .findings import VERDICT_ROLES
from .spans import Line, Span, counted, wrapped

LABEL_WIDTH = 26
WORD_WIDTH = 16


def trial_lines(
    trials: Sequence[Trial], outcomes: Sequence[Outcome | None], width: int
) -> list[Line]:
    """One line a trial; the first that has no outcome yet is the one that runs."""
    running = next((i for i, outcome in enumerate(outcomes) if outcome is None), None)
    lines: list[Line] = []
    for index, (trial, outcome) in enumerate(zip(trials, outcomes, strict=True)):
        label = Span(f"{trial.label:<{LABEL_WIDTH}}", "text")
        if outcome is None:
            word = "running…" if index == running else "waiting"
            lines.append((label, Span(word, "dim")))
            continue
        lines.append((label, *_told(outcome)))
        if outcome.failure:
            lines += wrapped(outcome.failure, width, "warn", "  ")
    return lines


def _told(outcome: Outcome) -> Line:
    word = Span(f" {outcome.word} ", VERDICT_ROLES.get(outcome.word, "warn") + ".fill")
    rest = " " * max(WORD_WIDTH - len(word.text), 1)
    if outcome.report is None:
        return (word,)
    found = counted(len(outcome.report.findings), "finding")
    return word, Span(f"{rest}{found:<13}", "text"), Span(f"{outcome.seconds:.1f} s", "dim")


def conclusion(
    trials: Sequence[Trial], outcomes: Sequence[Outcome | None], width: int
) -> list[Line]:
    """In words, once all have run. A switch hints at the culprit; only a bisection proves it."""
    recorded, *others = outcomes
    if recorded is None or any(outcome is None for outcome in others):
        return []
    if recorded.report is None:
        return []
    if recorded.report.exit_status == 0:
        return wrapped("The run is clean as recorded: there is nothing to switch off.", width)
    ended = [
        trial.label
        for trial, outcome in zip(trials[1:], others, strict=True)
        if outcome is not None and outcome.word == "clean"
    ]
    said = f"It ends with {_listed(ended)}." if ended else "No switch alone ends it."
    hint = "`kvrewind bisect` names the decision."
    return wrapped(f"{said} Switches hint, and can mislead: {hint}", width)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, or {names[-1]}"
