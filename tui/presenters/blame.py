"""Findings by where they lie in the trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ...replay.findings import Finding
from .spans import Span

Mark = Literal["culprit", "detected"]

CULPRIT, DETECTED = "◆", "◇"


def glyph(mark: Mark | None) -> Span:
    if mark == "culprit":
        return Span(CULPRIT, "bad")
    if mark == "detected":
        return Span(DETECTED, "bad")
    return Span(" ")


class Blame:
    """The findings of a report, asked by seq and by block."""

    def __init__(self, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        self._culprits: dict[int, list[Finding]] = {}
        self._detected: dict[int, list[Finding]] = {}
        self._blocks: dict[int, list[Finding]] = {}
        for finding in self.findings:
            self._detected.setdefault(finding.seq, []).append(finding)
            for seq in _culprits_of(finding):
                self._culprits.setdefault(seq, []).append(finding)
            if finding.block is not None:
                self._blocks.setdefault(finding.block, []).append(finding)

    def mark(self, seq: int) -> Mark | None:
        if seq in self._culprits:
            return "culprit"
        return "detected" if seq in self._detected else None

    def at(self, seq: int) -> list[Finding]:
        """Findings that this event is to blame for, then those that it shows, roots first."""
        blamed = self._culprits.get(seq, [])
        shown = [f for f in self._detected.get(seq, []) if f not in blamed]
        return [*sorted(blamed, key=lambda f: not f.root), *shown]

    def harm_at(self, seq: int) -> Finding | None:
        """The finding at an event that tells most: a foreign read, else the first one."""
        found = self.at(seq)
        reads = (finding for finding in found if finding.check == "foreign-read")
        return next(reads, found[0] if found else None)

    def of_block(self, block: int) -> list[Finding]:
        return self._blocks.get(block, [])

    def seqs(self) -> list[int]:
        """Where to stop when going from finding to finding."""
        return sorted({place_of(finding) for finding in self.findings})

    def marks_in(self, first_seq: int, last_seq: int) -> Mark | None:
        """The gravest mark of a range of events."""
        if _any_within(self._culprits, first_seq, last_seq):
            return "culprit"
        return "detected" if _any_within(self._detected, first_seq, last_seq) else None


def place_of(finding: Finding) -> int:
    """The event to open for a finding: the culprit, or where it showed."""
    return finding.seq if finding.culprit_seq is None else finding.culprit_seq


def _culprits_of(finding: Finding) -> tuple[int, ...]:
    if finding.culprit_seq is None:
        return ()
    return tuple(dict.fromkeys((finding.culprit_seq, *finding.culprits)))


def _any_within(seqs: Iterable[int], first: int, last: int) -> bool:
    return any(first <= seq <= last for seq in seqs)
