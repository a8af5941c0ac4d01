"""Findings on standard error while a run goes on: a line each for whoever is on call.

The same wrong decision made again is counted and told at the 10th, 100th, ... time, so that a
fault that is always there doesn't fill a disk.
"""

from __future__ import annotations

from collections.abc import Callable

from ..replay.findings import Finding
from ..replay.sightings import Sighting
from ..replay.verdict import Report
from ..replay.wording import counted, elided, shortened

_LONGEST = 400
_NAMES_SHOWN = 8


class FindingLog:
    """`sighted` each finding, then ask for the end with the final report."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._has_silent = False

    def sighted(self, sighting: Sighting) -> None:
        if sighting.is_revised or sighting.count == 1:
            self._say(finding_line(sighting))
        elif _is_power_of_ten(sighting.count):
            self._say(f"{finding_line(sighting)} ({sighting.count} like it by now)")
        else:
            self._has_silent = True

    def ended(self, report: Report) -> None:
        """What came of it all, and who was harmed, where not every finding was told."""
        found = counted(len(report.findings), "finding")
        self._say(f"checked while it ran: {report.verdict}, {found}{_by_check(report)}")
        if self._has_silent:
            self._say(f"victims: {_victims(report.findings)}")


def finding_line(sighting: Sighting) -> str:
    """Which rule, where, who read whose data, and the event to blame, on one line."""
    finding = sighting.finding
    is_root = finding.root and finding.culprit_seq is not None
    names = [finding.check, finding.fault_class, "root" if is_root else None]
    facts = [
        f"victim {finding.victim}" if finding.victim is not None else None,
        f"source {finding.source}" if finding.source is not None else None,
        f"culprit {sighting.culprit_position}" if sighting.culprit_position else None,
        f"decision {finding.decision}" if finding.decision else None,
    ]
    said = "now blamed on another event" if sighting.is_revised else finding.explanation
    line = (
        f"finding: {' '.join(filter(None, names))} at {finding.position}, "
        f"{', '.join(filter(None, facts)) or 'nobody named'}: {said}"
    )
    return shortened(" ".join(line.split()), _LONGEST)


def _by_check(report: Report) -> str:
    counts: dict[str, int] = {}
    for finding in report.findings:
        counts[finding.check] = counts.get(finding.check, 0) + 1
    told = ", ".join(f"{check} {count}" for check, count in counts.items())
    return f" ({told})" if told else ""


def _victims(findings: tuple[Finding, ...]) -> str:
    names = dict.fromkeys(f.victim for f in findings if f.victim is not None)
    return elided(list(names), _NAMES_SHOWN) or "none named"


def _is_power_of_ten(count: int) -> bool:
    text = str(count)
    return text[0] == "1" and not text[1:].strip("0")
