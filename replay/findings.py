"""What a check found: one broken rule, where it showed, and the decision to blame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, with the fields of the trace contract.

    `seq` and `position` say where the check fired, `culprit_seq` names the event that carries the
    wrong decision out. `query` counts the step's tokens as `MaskBuilt.allowed` counts its rows,
    and `key` its columns: together they are the exact mask index.
    """

    check: str
    fault_class: str | None
    root: bool
    position: str
    seq: int
    culprit_seq: int | None
    decision: str | None = None
    block: int | None = None
    slot: int | None = None
    row: int | None = None
    query: int | None = None
    key: int | None = None
    expected: Any = None
    actual: Any = None
    victim: str | None = None
    source: str | None = None
    """Whose data was read; None for a pad's, or where nobody's was."""
    also_affected: tuple[str, ...] = ()
    explanation: str
    culprits: tuple[int, ...] = ()
    """Every event of the run of like events that this finding stands for, the first included."""

    def to_json(self) -> dict[str, Any]:
        """Exactly the fields of the contract, in its order."""
        return {
            "check": self.check,
            "class": self.fault_class,
            "root": self.root,
            "position": self.position,
            "seq": self.seq,
            "culprit_seq": self.culprit_seq,
            "decision": self.decision,
            "block": self.block,
            "slot": self.slot,
            "row": self.row,
            "query": self.query,
            "key": self.key,
            "expected": self.expected,
            "actual": self.actual,
            "victim": self.victim,
            "source": self.source,
            "also_affected": list(self.also_affected),
            "explanation": self.explanation,
        }
