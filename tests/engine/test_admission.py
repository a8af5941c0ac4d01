"""What could never be served is refused before the first step, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.admission import PromptRefused, refuse_impossible
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel
from kvrewind.engine.request import Prompt

CARD = SymbolicModel().runner(EngineConfig()).card
SMALL = EngineConfig(block_size=4, num_blocks=8)


def prompt(name: str = "a", tokens: int = 4, **fields: Any) -> Prompt:
    given = {"request": name, "prompt_tokens": (20,) * tokens, "max_new_tokens": 1} | fields
    return Prompt(**given)


def refused(config: EngineConfig, *prompts: Prompt) -> str:
    with pytest.raises(PromptRefused) as refusal:
        refuse_impossible(prompts, config, CARD)
    return str(refusal.value)


def test_a_prompt_that_fills_the_pool_is_served_and_a_longer_one_refused() -> None:
    refuse_impossible([prompt(tokens=32)], SMALL, CARD)
    assert "'a' needs 9 blocks" in refused(SMALL, prompt(tokens=33))


def test_blocks_in_quarantine_are_no_room() -> None:
    config = EngineConfig(block_size=4, num_blocks=8, reuse="quarantine=3")
    refuse_impossible([prompt(tokens=20)], config, CARD)
    told = refused(config, prompt(tokens=21))
    assert "the pool has 8 and keeps 3 in quarantine" in told


def test_several_samples_may_wait_for_each_other() -> None:
    for preemption in (True, False):
        config = EngineConfig(block_size=4, num_blocks=8, preemption=preemption)
        refuse_impossible([prompt(tokens=32, n=5)], config, CARD)
        assert "needs 9 blocks" in refused(config, prompt(tokens=33, n=5))


def test_a_sample_has_a_name_that_nobody_else_may_have() -> None:
    told = refused(SMALL, prompt("a", n=3), prompt("a/2"))
    assert "'a/2' comes twice" in told
    refuse_impossible([prompt("a", n=2), prompt("a/2")], SMALL, CARD)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"temperature": -0.1}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": -1}, "top_k must be 0 or more"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"arrival_s": -1.0}, "arrival_s must be 0 or more"),
        ({"extra_keys": ((-1, "salt"),)}, "first position of an extra key"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_a_value_without_meaning_is_refused(fields: dict[str, Any], told: str) -> None:
    assert told in refused(SMALL, prompt(**fields))


def test_any_priority_and_retention_will_do() -> None:
    refuse_impossible([prompt(priority=-(10**9), retention=-5)], SMALL, CARD)
