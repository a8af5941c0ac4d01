"""The stable name of a decision: (kind, request, index, ordinal), never a physical block.

Builder decisions (table, slots, positions, mask) are indexed by the row's sequence length after
the step, drafts left out (whether they stay isn't known when the row is built); block decisions by
the logical block; the ordinal counts how often the request was admitted before (a preemption adds
one). Builder decisions have no event of their own: their ids
are derived from a row of `InputsBuilt` or `MaskBuilt`. KV groups have block numbers and tables of
their own, so what is decided in a group past the first names it: `reuse@1:r0:2:0`. A copy on write
takes a block and gives one up at an index where the request does so once more: `reuse+copy:r0:2:0`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class DecisionId:
    kind: str
    request: str
    index: int
    ordinal: int
    group: int = 0
    occasion: str = ""
    """What it is decided for, where the same is decided twice in one admission."""

    def __str__(self) -> str:
        kind = f"{self.kind}+{self.occasion}" if self.occasion else self.kind
        kind = f"{kind}@{self.group}" if self.group else kind
        return f"{kind}:{self.request}:{self.index}:{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> DecisionId:
        """Inverse of `str`; request names may contain colons. Raises ValueError otherwise."""
        kind, rest = text.split(":", 1)
        kind, _, group = kind.partition("@")
        kind, _, occasion = kind.partition("+")
        request, index, ordinal = rest.rsplit(":", 2)
        return cls(kind, request, int(index), int(ordinal), int(group or 0), occasion)


def row_index(seq_len: int, query_len: int, phase: str | None) -> int:
    """The index of a builder's decisions about a row: in a decode row all tokens but the first
    are drafts."""
    return seq_len - query_len + 1 if phase == "decode" else seq_len
