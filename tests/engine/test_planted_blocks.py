"""The questions of the block pool can be answered wrongly, as engines have done: the fold still
equals the engine, and the checks name the decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.decisions import reference_answer
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.questions import (
    Acquire,
    Answer,
    Free,
    Publish,
    Question,
    Released,
    Reuse,
    Taken,
)
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import BlockRegistered, StepScheduled
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State
from summaries import engine_summary

MODEL = SymbolicModel()
A, B = tuple(range(60, 78)), tuple(range(80, 98))


class Wrong:
    """Answers one kind of question in its own way."""

    def __init__(self, kind: type[Any], answer: Callable[[Any], Answer]) -> None:
        self._kind, self._answer = kind, answer

    def answer(self, question: Question) -> Answer:
        is_mine = isinstance(question, self._kind)
        return self._answer(question) if is_mine else reference_answer(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        pass


def race(question: Reuse) -> Taken:
    """Two threads pop the same block."""
    before = question.before
    if before is None or before.request == question.id.request:
        return Taken(question.head, question.entry is not None)
    return Taken(before.block, unregister=True)


def twice(question: Free) -> Released:
    """Whoever lets go counts down twice."""
    return Released(question.ref_count - 2, freed=question.ref_count in (1, 2))


WRONG = {
    "allocate-race": (Reuse, race, "ref-count"),
    "no-unregister-on-reuse": (Reuse, lambda q: Taken(q.head, False), "stale-index"),
    "share-without-acquire": (Acquire, lambda q: q.ref_count, "ref-count"),
    "double-release": (Free, twice, "ref-count"),
}


def prompts() -> list[Prompt]:
    """A and B together, A's prefix again after B took its blocks, and aborts in between."""
    made = [
        ("a", A, 1, None),
        ("b", (*B, 3), 1, None),
        ("a2", (*A, 40), 3, 4),
        ("b2", (*B, 41), 9, None),
        ("c", (*A[:9], 42, 43), 10, None),
        ("a3", (*A, 44), 16, None),
        ("a4", (*A, 45), 17, None),
    ]
    return [
        Prompt(
            request=name, prompt_tokens=tokens, max_new_tokens=6, ignore_eos=True,
            arrival_step=arrival, abort_step=abort,
        )
        for name, tokens, arrival, abort in made
    ]  # fmt: skip


def run(policy: Wrong) -> tuple[Engine, MemorySink, list[str]]:
    sink, state, differences = MemorySink(), State(), []
    config = EngineConfig(block_size=4, num_blocks=14, scrub="zero")
    engine = make_engine(MODEL, config, prompts(), sink, policy=policy)
    folded = 0
    while engine.has_work and engine.step_number < 60:
        engine.step()
        for envelope in sink.envelopes[folded:]:
            apply(state, envelope)
        folded = len(sink.envelopes)
        own, fold = engine_summary(engine), state.summary()
        differences += [f"{engine.step_number}: {part}" for part in own if own[part] != fold[part]]
    return engine, sink, differences


@pytest.mark.parametrize("name", WRONG)
def test_what_went_wrong_elsewhere_can_be_planted_and_is_told(name: str) -> None:
    kind, answer, slug = WRONG[name]
    _, sink, differences = run(Wrong(kind, answer))
    assert differences == []
    assert slug in {finding.check for finding in check(sink.envelopes).findings}


def test_a_block_can_be_published_when_it_is_allocated() -> None:
    _, sink, differences = run(Wrong(Publish, lambda question: question.content.key))
    assert differences == []
    registered = [e for e in sink.envelopes if isinstance(e.event, BlockRegistered)]
    scheduled = [e for e in sink.envelopes if isinstance(e.event, StepScheduled)]
    assert registered[0].seq < scheduled[0].seq


def test_the_same_workload_answered_rightly_is_clean() -> None:
    engine, sink, differences = run(Wrong(Publish, reference_answer))
    assert differences == []
    assert not engine.has_work
    assert not check(sink.envelopes).findings
