"""From findings to one word and an exit status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .findings import Finding

Verdict = Literal[
    "contaminated", "violated", "unexplained", "unstable", "incomplete", "numeric-drift", "clean"
]

PRECEDENCE: tuple[Verdict, ...] = (
    "contaminated",
    "violated",
    "unexplained",
    "unstable",
    "incomplete",
    "numeric-drift",
    "clean",
)

EXIT_STATUS: Mapping[Verdict, int] = {
    "contaminated": 1,
    "violated": 1,
    "unexplained": 1,
    "unstable": 4,
    "incomplete": 4,
    "numeric-drift": 0,
    "clean": 0,
}


UNEXPLAINED_CHECKS = ("difference", "digest", "attention", "passphrase")
"""They show a difference for which no logged read accounts."""


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of `check`. `missing`: what wasn't recorded, and what to record."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    @property
    def roots(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.root)

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
            "missing": list(self.missing),
        }


def verdict_of(
    findings: Iterable[Finding], *, read_foreign_data: bool, missing: Iterable[str]
) -> Verdict:
    """The word that comes first in `PRECEDENCE` among those that apply.

    `read_foreign_data`: some finding shows data of another request (or a pad) reaching a request.
    """
    applying: set[Verdict] = {"clean"}
    for finding in findings:
        applying.add(_word_for(finding))
    if read_foreign_data:
        applying.add("contaminated")
    if any(True for _ in missing):
        applying.add("incomplete")
    return next(word for word in PRECEDENCE if word in applying)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one that comes first in `PRECEDENCE`."""
    return min(verdicts, key=PRECEDENCE.index)


def _word_for(finding: Finding) -> Verdict:
    return "unexplained" if finding.check in UNEXPLAINED_CHECKS else "violated"
