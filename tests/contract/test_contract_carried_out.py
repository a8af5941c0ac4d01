"""Every decision that the engine makes is carried out by an event that a person can be sent to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kvrewind.engine import decisions
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.decisions import Reference
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.llm import make_engine
from kvrewind.engine.questions import Answer, Question
from kvrewind.engine.request import Prompt
from kvrewind.recorder.decision import DecisionId
from kvrewind.recorder.events import DecisionMade
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.carried_out import BUILT, CARRIERS, carrier_of
from whole_engine import BabblerModel

TEXT = (3, 4, 3, 4, 3, 4, 5, 6, 3, 4, 3, 4)

SWITCHES: dict[str, dict[str, Any]] = {
    "drafts, scrubs and explicit masks": {
        "speculation": 2, "scrub": "nan", "attention": "reference", "num_blocks": 14,
        "max_num_batched_tokens": 8,
    },
    "two in flight in buffers": {
        "steps_in_flight": 2, "persistent_buffers": True, "num_blocks": 24, "scrub": "zero",
        "scrub_at": "allocation",
    },
    "host memory and pads": {
        "host_blocks": 60, "transfer_steps": 2, "layout": "padded-left", "num_blocks": 13,
        "max_num_seqs": 2,
    },
}  # fmt: skip


class Listener:
    """Decides by reference, and keeps what was decided."""

    def __init__(self) -> None:
        self.made: list[tuple[DecisionId, Answer]] = []

    def answer(self, question: Question) -> Answer:
        return Reference().answer(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        self.made.append((question.id, answer))


def run(switches: dict) -> tuple[list, Listener]:
    prompts = [
        Prompt(request="r0", prompt_tokens=TEXT[:11], max_new_tokens=6, n=2, ignore_eos=True),
        Prompt(request="r1", prompt_tokens=TEXT[:7], max_new_tokens=9, arrival_step=2),
        Prompt(request="r2", prompt_tokens=TEXT, max_new_tokens=6, arrival_step=9, abort_step=13),
        Prompt(request="r3", prompt_tokens=(7, 5, 7, 6) * 5, max_new_tokens=5, arrival_step=12),
        Prompt(request="r4", prompt_tokens=TEXT, max_new_tokens=12, arrival_step=30),
    ]
    config, model = EngineConfig(block_size=2, **switches), BabblerModel(windows=(None, 5))
    sink, listener = MemorySink(), Listener()
    engine = make_engine(model, config, prompts, sink, policy=listener)
    engine.change_epoch(EpochChange("weights", 2, step=37))
    engine.run(300)
    return sink.envelopes, listener


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_each_decision_has_an_event_of_its_own_kind(switches: dict) -> None:
    envelopes, listener = run(switches)
    idle = Counter[str]()
    for id, answer in listener.made:
        carrier = carrier_of(id, envelopes)
        assert carrier is not None, id
        if isinstance(carrier.event, DecisionMade):
            idle[id.kind] += 1
            assert answer in (None, False) or id.kind in ("rollback", "retire", "ready"), id
        else:
            kinds = (BUILT[id.kind],) if id.kind in BUILT else CARRIERS[id.kind]
            assert isinstance(carrier.event, kinds), (id, carrier)
            group = getattr(carrier.event, "group", None) or 0
            assert group == id.group or not hasattr(carrier.event, "group"), (id, carrier)
    assert len(listener.made) - idle.total() > 100


def test_every_kind_of_question_is_decided_in_one_of_these_runs() -> None:
    """A new kind must be given a carrier, and a workload that asks it."""
    decided = {id.kind for switches in SWITCHES.values() for id, _ in run(switches)[1].made}
    assert decided == {*CARRIERS, *BUILT}
    questions = decisions.Question.__args__
    assert len(questions) == len(decided - {"scrub-evicted"})
