"""How a bisection makes the engine decide otherwise, without knowing what was planted."""

from __future__ import annotations

from collections.abc import Set

from ..engine.decisions import Policy, reference_answer, same_answer
from ..engine.questions import Answer, Question
from ..recorder.decision import DecisionId


class Shadow:
    """Decides as recorded, and notes where the reference answer to the same question differs."""

    def __init__(self, recorded: Policy) -> None:
        self._recorded = recorded
        self.differing: list[DecisionId] = []
        self.decisions = 0

    def answer(self, question: Question) -> Answer:
        return self._recorded.answer(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        self.decisions += 1
        if not same_answer(answer, reference_answer(question)):
            self.differing.append(question.id)


class AsRecordedFor:
    """Decides as recorded in the given decisions, by reference in all others."""

    def __init__(self, recorded: Policy, ids: Set[DecisionId]) -> None:
        self._recorded = recorded
        self._ids = ids

    def answer(self, question: Question) -> Answer:
        if question.id in self._ids:
            return self._recorded.answer(question)
        return reference_answer(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        pass
