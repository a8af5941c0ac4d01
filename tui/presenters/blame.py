"""Findings by where they lie in the trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
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


class BlockBlame:
    """The findings about one block, asked in constant time however many there are."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        ordered = sorted(findings, key=place_of)
        self._places = [place_of(finding) for finding in ordered]
        ends = (max(finding.seq, place_of(finding)) for finding in ordered)
        self._shown_until = list(accumulate(ends, max))
        self._victims: dict[str, int] = {}
        for finding in ordered:
            if finding.victim is not None:
                self._victims.setdefault(finding.victim, place_of(finding))

    def is_open(self, seq: int) -> bool:
        """Something was done wrong at or before `seq` and doesn't show before it."""
        index = bisect_right(self._places, seq)
        return index > 0 and self._shown_until[index - 1] >= seq

    def is_victim(self, request: str, seq: int) -> bool:
        """A finding about the block, decided at or before `seq`, has this victim."""
        return self._victims.get(request, seq + 1) <= seq


class Blame:
    """The findings of a report, asked by seq and by block."""

    def __init__(self, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        self._culprits: dict[int, list[Finding]] = {}
        self._detected: dict[int, list[Finding]] = {}
        of_blocks: dict[int, list[Finding]] = {}
        for finding in self.findings:
            self._detected.setdefault(finding.seq, []).append(finding)
            for seq in _culprits_of(finding):
                self._culprits.setdefault(seq, []).append(finding)
            if finding.block is not None:
                of_blocks.setdefault(finding.block, []).append(finding)
        self._blocks = {block: BlockBlame(found) for block, found in of_blocks.items()}
        self._culprit_seqs = sorted(self._culprits)
        self._detected_seqs = sorted(self._detected)
        self.seqs = sorted({place_of(finding) for finding in self.findings})
        """Where to stop when going from finding to finding."""

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

    def of_block(self, block: int) -> BlockBlame | None:
        return self._blocks.get(block)

    def marks_in(self, first_seq: int, last_seq: int) -> Mark | None:
        """The gravest mark of a range of events."""
        if _any_within(self._culprit_seqs, first_seq, last_seq):
            return "culprit"
        return "detected" if _any_within(self._detected_seqs, first_seq, last_seq) else None


def place_of(finding: Finding) -> int:
    """The event to open for a finding: the culprit, or where it showed."""
    return finding.seq if finding.culprit_seq is None else finding.culprit_seq


def _culprits_of(finding: Finding) -> tuple[int, ...]:
    if finding.culprit_seq is None:
        return ()
    return tuple(dict.fromkeys((finding.culprit_seq, *finding.culprits)))


def _any_within(seqs: Sequence[int], first: int, last: int) -> bool:
    index = bisect_left(seqs, first)
    return index < len(seqs) and seqs[index] <= last
