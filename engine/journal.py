"""Where decisions and events leave the engine: the policy on one side, the sink on the other."""

from __future__ import annotations

from ..recorder.decision import DecisionId
from ..recorder.events import DecisionMade, Event
from ..recorder.sink import Sink
from .decisions import BUILDERS, Policy, Reference, as_choice
from .questions import Answer, Question
from .request import Request


class Journal:
    """Knows the step, so that whoever emits needn't."""

    def __init__(self, sink: Sink, policy: Policy) -> None:
        self._sink = sink
        self._policy = policy
        self.listening = getattr(sink, "listening", True)
        """False: nobody hears of events, so those of every step needn't be made."""
        self.asks_builders = type(policy) is not Reference
        """False: the policy gives the reference answers and remembers nothing, so that nobody can
        tell whether it was asked. Then a builder may work all of them out at once."""
        self.step = 0

    def emit(self, event: Event) -> None:
        self._sink.emit(event, self.step)

    def emit_for(self, step: int, event: Event) -> None:
        """Of a step that may not be the present one: with two in flight one completes late."""
        self._sink.emit(event, step)

    def id(
        self, kind: str, request: Request, index: int, group: int = 0, occasion: str = ""
    ) -> DecisionId:
        return DecisionId(kind, request.name, index, request.ordinal, group, occasion)

    def next_id(self, kind: str, request: Request, index: int, group: int = 0) -> DecisionId:
        """For what is decided while the request still waits for its next admission."""
        return DecisionId(kind, request.name, index, request.admissions, group)

    def answer(self, question: Question) -> Answer:
        """What would be done; nothing is decided yet."""
        return self._policy.answer(question)

    def carry_out(self, question: Question, answer: Answer) -> None:
        """The answer becomes a decision: logged just before the events that carry it out."""
        self._policy.carried_out(question, answer)
        if self.listening and question.id.kind not in BUILDERS:
            self.emit(
                DecisionMade(
                    decision=str(question.id),
                    about=question.id.kind,
                    request=question.id.request,
                    choice=as_choice(question, answer),
                )
            )

    def decide(self, question: Question) -> Answer:
        answer = self.answer(question)
        self.carry_out(question, answer)
        return answer
