"""The simulator knows each request's own text, whoever had its place before."""

from __future__ import annotations

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.memory import MemorySink


def test_an_adapter_changes_what_is_cached_and_not_what_a_request_sees_of_itself() -> None:
    """More requests than there are places to begin with, one after the other."""
    said = {adapter: answers(adapter) for adapter in (None, "french")}
    assert said["french"] == said[None]
    assert len(set(said[None])) > 20


def answers(adapter: str | None) -> list[tuple[int, ...]]:
    model = SymbolicModel()
    config = EngineConfig(block_size=4, num_blocks=16, max_num_seqs=2)
    prompts = [
        Prompt(
            request=f"r{number}",
            prompt_tokens=(*range(20, 29), 20 + number % 30),
            max_new_tokens=4,
            adapter=adapter,
            ignore_eos=True,
        )
        for number in range(70)
    ]
    engine = make_engine(model, config, prompts, MemorySink())
    engine.run()
    return [tuple(request.tokens[10:]) for request in engine.requests.values()]
