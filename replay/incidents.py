"""Findings, gathered around the wrong decision that they come from."""

from __future__ import annotations

from dataclasses import dataclass

from .findings import Finding
from .verdict import Report


@dataclass(frozen=True, slots=True)
class Incident:
    """One root and what follows from it, or repeats it."""

    root: Finding
    shown: Finding
    """The one that shows the harm: a foreign read, where there is one, else the root."""
    others: tuple[Finding, ...]

    @property
    def cause(self) -> Finding:
        """The finding of the decision that allowed what is shown: the root's, or a later one like
        it where the first one harmed nobody."""
        for finding in (self.root, *self.others):
            blamed = (finding.culprit_seq, *finding.culprits)
            if finding.check != "foreign-read" and self.shown.culprit_seq in blamed:
                return finding
        return self.root

    @property
    def affected(self) -> tuple[str, ...]:
        """The requests that any of its findings names, but for the reader shown."""
        names: dict[str, None] = {}
        for finding in (self.root, *self.others):
            victim = () if finding.victim is None else (finding.victim,)
            names.update(dict.fromkeys((*victim, *finding.also_affected)))
        names.pop(self.shown.victim or "", None)
        return tuple(names)


def incidents(report: Report) -> tuple[Incident, ...]:
    """In the order of the report's roots."""
    roots = report.roots
    of_root: dict[int, list[Finding]] = {index: [] for index in range(len(roots))}
    for finding in report.findings:
        index = None if finding.root else _root_of(finding, roots)
        if index is not None:
            of_root[index].append(finding)
    return tuple(
        Incident(root, _shown(root, of_root[index]), tuple(of_root[index]))
        for index, root in enumerate(roots)
    )


def _root_of(finding: Finding, roots: tuple[Finding, ...]) -> int | None:
    """The root of the same decision, else the last of its class before it, else of its check."""
    for index, root in enumerate(roots):
        if finding.culprit_seq is not None and finding.culprit_seq in _culprits(root):
            return index
    alike = [
        index for index, root in enumerate(roots) if root.fault_class == finding.fault_class
    ] or [index for index, root in enumerate(roots) if root.check == finding.check]
    before = [index for index in alike if (roots[index].culprit_seq or 0) <= finding.seq]
    return (before or alike or [None])[-1]


def _shown(root: Finding, others: list[Finding]) -> Finding:
    """Of the foreign reads that the same decision allowed: one by the request it was made for, of
    the block that it was about, the earliest."""
    if root.check == "foreign-read":
        return root
    reads = [finding for finding in others if finding.check == "foreign-read"]
    own = [finding for finding in reads if finding.culprit_seq in _culprits(root)]
    return min(
        own or reads,
        key=lambda read: (read.victim != root.victim, read.block != root.block, read.seq),
        default=root,
    )


def _culprits(root: Finding) -> tuple[int | None, ...]:
    return (root.culprit_seq, *root.culprits)
