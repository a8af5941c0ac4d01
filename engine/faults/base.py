"""What a planted fault is: another answer to some kinds of question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..decisions import reference_answer
from ..questions import Answer, Question

Outcome = Literal["leaks", "violates", "alters", "drift", "unexplained"]


@dataclass(frozen=True, slots=True)
class Fault(ABC):
    """`answer` gets the question and the right answer; it returns what the broken engine does."""

    name: str
    fault_class: str
    check: str
    outcome: Outcome
    what: str
    seen_in: str
    """A public report of the same kind."""
    needs: str = ""
    implies: Mapping[str, Any] = field(default_factory=dict)
    """Switches that planting it sets, for the clean twin too."""

    @abstractmethod
    def answer(self, question: Question, right: Answer) -> Answer: ...


class Faulty:
    """A policy with faults planted: each may replace the answer of the one before."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults

    def answer(self, question: Question) -> Answer:
        answer = reference_answer(question)
        for fault in self._faults:
            answer = fault.answer(question, answer)
        return answer

    def carried_out(self, question: Question, answer: Answer) -> None:
        pass
