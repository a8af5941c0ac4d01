"""Faults of the reference count."""

from __future__ import annotations

from ..questions import Answer, Free, Question, Released
from .base import Fault


class FreeWhileShared(Fault):
    """Whoever lets go first frees the block, though others hold it."""

    def answer(self, question: Question, right: Answer) -> Answer:
        if isinstance(question, Free):
            return Released(right.ref_count, freed=True)
        return right


FREE_WHILE_SHARED = FreeWhileShared(
    name="free-while-shared",
    fault_class="F06",
    check="ref-count",
    outcome="leaks",
    what="the first of several holders to finish frees the block",
    seen_in="vLLM 42571",
    needs="a long holder beside an early finisher of the same prefix",
)
