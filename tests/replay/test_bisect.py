"""The search finds the decision that is enough, and only it, within its number of trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import FAULTS, with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.decision import DecisionId
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.bisect import _search, bisect
from kvrewind.replay.check import check
from kvrewind.replay.laboratory import Laboratory, Outcome
from kvrewind.replay.policies import AsRecordedFor
from kvrewind.replay.recording import Recording
from kvrewind.replay.reexecute import Reexecutor

MODEL = SymbolicModel()
KIND_OF = {
    "key-no-parent": "share",
    "key-length-only": "share",
    "free-while-shared": "free",
    "table-keeps-freed": "trim",
    "mask-batch-index": "mask",
    "mask-broadcast-wrong-axis": "mask",
}


def ids(kinds: str) -> list[DecisionId]:
    return [DecisionId(kind, "r", index, 0) for index, kind in enumerate(kinds)]


@dataclass
class Paper:
    """A laboratory on paper: fails when the predicate says so, and counts distinct trials."""

    fails: Callable[[frozenset[DecisionId]], bool]
    tried: set[frozenset[DecisionId]] = field(default_factory=set)

    def with_recorded(self, chosen: frozenset[DecisionId]) -> Outcome:
        self.tried.add(chosen)
        return Outcome(self.fails(chosen), "", frozenset(map(str, chosen)))


def search(paper: Paper, decisions: list[DecisionId]) -> list[tuple[DecisionId, ...]]:
    found = _search(cast(Laboratory, paper), decisions, lambda _: None)
    return [group.ids for group in found]


@given(st.integers(1, 300), st.data())
def test_one_culprit_is_found_in_log_n_trials(count: int, data: st.DataObject) -> None:
    decisions = ids("a" * count)
    culprit = data.draw(st.sampled_from(decisions))
    paper = Paper(lambda chosen: culprit in chosen)
    assert search(paper, decisions) == [(culprit,)]
    paper.tried.discard(frozenset(decisions))  # known from the shadow pass
    assert len(paper.tried) <= ceil(log2(count)) + 1 if count > 1 else not paper.tried


@given(st.integers(2, 60), st.data())
def test_two_decisions_that_need_each_other_are_a_set(count: int, data: st.DataObject) -> None:
    decisions = ids("a" * count)
    pair = set(data.draw(st.lists(st.sampled_from(decisions), min_size=2, max_size=2, unique=True)))
    paper = Paper(lambda chosen: pair <= chosen)
    (group,) = search(paper, decisions)
    assert set(group) == pair


@given(st.text("abc", min_size=2, max_size=40), st.data())
def test_independent_culprits_of_different_kinds_are_all_found(
    kinds: str, data: st.DataObject
) -> None:
    decisions = ids(kinds)
    guilty = {
        kind: data.draw(st.sampled_from([d for d in decisions if d.kind == kind]))
        for kind in sorted(set(kinds))
    }
    paper = Paper(lambda chosen: any(d in chosen for d in guilty.values()))
    found = search(paper, decisions)
    assert {group[0] for group in found} == set(guilty.values())
    assert all(len(group) == 1 for group in found)


def recorded(config: EngineConfig, prompts: list[Prompt]) -> tuple[Any, Reexecutor]:
    sink = MemorySink()
    make_engine(MODEL, config, prompts, sink).run(max_steps=400)
    return sink.envelopes, Reexecutor(Recording.of(sink.envelopes), MODEL)


@st.composite
def crowds(draw: st.DrawFn) -> list[Prompt]:
    """Requests that share beginnings, arrive late, and decode past their last block."""
    base = draw(st.lists(st.integers(3, 40), min_size=24, max_size=24))
    prompts = []
    for i in range(draw(st.integers(3, 6))):
        start = draw(st.sampled_from([0, 0, 4, 8]))
        tail = draw(st.lists(st.integers(41, 80), min_size=1, max_size=9))
        prompts.append(
            Prompt(
                request=f"r{i}",
                prompt_tokens=(*base[start : draw(st.integers(start + 4, 24))], *tail),
                max_new_tokens=draw(st.integers(2, 12)),
                arrival_step=draw(st.integers(1, 6)),
                ignore_eos=True,
            )
        )
    return prompts


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
@settings(max_examples=6, deadline=None)
@given(prompts=crowds(), num_blocks=st.integers(12, 24))
def test_in_any_crowd_the_culprit_is_of_the_planted_kind_and_enough_alone(
    fault: str, prompts: list[Prompt], num_blocks: int
) -> None:
    config = with_implied(EngineConfig(block_size=4, num_blocks=num_blocks, faults=(fault,)))
    envelopes, reexecutor = recorded(config, prompts)
    found = bisect(envelopes, reexecutor)
    verdict = check(envelopes).verdict
    assert found.verdict == verdict
    if verdict == "clean":
        assert found.culprits == ()
        return
    culprits = [culprit.id for culprit in found.culprits]
    assert {id.kind for id in culprits} == {KIND_OF[fault]}
    assert found.trials <= ceil(log2(found.decisions)) + 2 or len(culprits) > 1
    alone = reexecutor.run(policy=AsRecordedFor(_policy(config), frozenset(culprits)))
    assert check(alone.envelopes).verdict in ("contaminated", verdict)


def _policy(config: EngineConfig):
    from kvrewind.engine.faults.registry import policy_of

    return policy_of(config)


def test_a_victim_narrows_the_search() -> None:
    tokens = tuple(range(3, 15))
    prompts = [
        Prompt(request="a", prompt_tokens=tokens, max_new_tokens=3),
        Prompt(request="b", prompt_tokens=tokens[4:], max_new_tokens=3, arrival_step=2),
        Prompt(request="c", prompt_tokens=(*tokens[8:], 99), max_new_tokens=3, arrival_step=3),
    ]
    config = EngineConfig(block_size=4, num_blocks=20, faults=("key-no-parent",))
    envelopes, reexecutor = recorded(config, prompts)
    for victim in ("b", "c"):
        found = bisect(envelopes, reexecutor, victim=victim)
        assert [c.id.request for c in found.culprits] == [victim]
    assert bisect(envelopes, reexecutor, victim="a").culprits == ()
