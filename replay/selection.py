"""A report seen through some of its rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..recorder.errors import BadInput
from .checks import CHECKS
from .verdict import Report, verdict_of


def narrowed(report: Report, only: Sequence[str], skip: Sequence[str]) -> Report:
    """The findings of the rules `only` (all, when empty) but those of `skip`, and their verdict.

    Raises `BadInput` for a rule that doesn't exist.
    """
    known = tuple(rule.slug for rule in CHECKS)
    for slug in (*only, *skip):
        if slug not in known:
            raise BadInput(f"there is no rule {slug!r}; known are {', '.join(known)}")
    kept = tuple(
        f for f in report.findings if (not only or f.check in only) and f.check not in skip
    )
    if len(kept) == len(report.findings):
        return report
    foreign = any(finding.check == "foreign-read" for finding in kept)
    verdict = verdict_of(kept, read_foreign_data=foreign, missing=report.missing)
    return replace(report, findings=kept, verdict=verdict)
