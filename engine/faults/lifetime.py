"""Faults of a block's life: given up, but still in use."""

from __future__ import annotations

from ..questions import Answer, Question, Trim
from .base import Fault


class TableKeepsFreed(Fault):
    """A preempted request keeps the table entries of the blocks that it gave up.

    When it comes back it computes into blocks that others were handed meanwhile (mini-sglang
    142: a page table that outlives its pages).
    """

    def answer(self, question: Question, right: Answer) -> Answer:
        return question.block if isinstance(question, Trim) else right


TABLE_KEEPS_FREED = TableKeepsFreed(
    name="table-keeps-freed",
    fault_class="F07",
    check="dangling-table",
    outcome="leaks",
    what="a preempted request's block table keeps the blocks that the request gave up",
    seen_in="mini-sglang 142",
    needs="a pool that preempts",
)
