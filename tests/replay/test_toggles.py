"""A bisection throws the switches of those mechanisms that the recording shows at work."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import Envelope, InputsBuilt
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.recording import Recording
from kvrewind.replay.reducer import fold
from kvrewind.replay.reexecute import Forced, Reexecutor
from kvrewind.replay.state import State
from kvrewind.replay.toggles import ALWAYS, toggles_for

MODEL = SymbolicModel()
TEXT = tuple(range(3, 15))


def recorded(
    count: int = 3, length: int = 12, **switches: Any
) -> tuple[EngineConfig, list[Envelope]]:
    """So many requests of that length, one a step, with nothing in common."""
    prompts = [
        Prompt(
            request=f"r{i}", prompt_tokens=tuple(20 * i + t for t in TEXT[:length]),
            max_new_tokens=4, arrival_step=1 + i, ignore_eos=True,
        )
        for i in range(count)
    ]  # fmt: skip
    config, sink = EngineConfig(**({"block_size": 4, "num_blocks": 40} | switches)), MemorySink()
    make_engine(MODEL, config, prompts, sink).run(300)
    return config, sink.envelopes


def further(config: EngineConfig, envelopes: list[Envelope]) -> dict[str, Any]:
    """Those that are not thrown always."""
    found = toggles_for(config, envelopes)
    assert {name: found[name] for name in ALWAYS} == ALWAYS
    return {name: switches for name, switches in found.items() if name not in ALWAYS}


def test_a_plain_run_of_one_request_has_the_three_only() -> None:
    assert further(*recorded(count=1)) == {}


@pytest.mark.parametrize(
    ("switches", "toggle"),
    [
        ({}, ("no-packing", {"layout": "padded-right"})),
        ({"layout": "dense"}, ("packed", {"layout": "packed"})),
        ({"max_num_batched_tokens": 5}, ("no-chunked-prefill", {"chunked_prefill": False})),
        ({"num_blocks": 6}, ("no-preemption", {"preemption": False})),
        ({"persistent_buffers": True}, ("no-persistent-buffers", {"persistent_buffers": False})),
        ({"steps_in_flight": 2}, ("one-step-in-flight", {"steps_in_flight": 1})),
        ({"host_blocks": 9, "num_blocks": 9}, ("no-host-tier", {"host_blocks": 0})),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_mechanism_at_work_has_its_toggle(
    switches: dict[str, Any], toggle: tuple[str, dict[str, Any]]
) -> None:
    name, thrown = toggle
    assert further(*recorded(**switches))[name] == thrown


def test_a_mechanism_that_had_nothing_to_do_has_none() -> None:
    """Each is on, and the run is too short for any of it."""
    idle = further(
        *recorded(
            count=2, length=5, max_num_batched_tokens=64, speculation=0, host_blocks=0,
            num_blocks=40, chunked_prefill=True, preemption=True,
        )
    )  # fmt: skip
    assert set(idle) == {"no-packing"}


def test_drafts_have_their_toggle() -> None:
    prompt = Prompt(request="r", prompt_tokens=(7,) * 9, max_new_tokens=6, ignore_eos=True)
    config, sink = EngineConfig(block_size=4, speculation=2), MemorySink()
    runner = Forced(MODEL.runner(config), {"r": (7,) * 6})
    make_engine(MODEL, config, [prompt], sink, runner=runner).run(100)
    assert further(config, sink.envelopes) == {"no-speculation": {"speculation": 0}}


def test_without_block_reuse_no_block_is_handed_out_twice() -> None:
    config, envelopes = recorded(count=6, num_blocks=9, reuse="last-freed")
    thrown = further(config, envelopes)["no-block-reuse"]
    assert thrown["reuse"] == "first-freed"
    rerun = Reexecutor(Recording.of(envelopes), MODEL).run(thrown)
    assert generations(envelopes) > 1
    assert generations(rerun.envelopes) == 1


def generations(envelopes: list[Envelope]) -> int:
    state: State = fold(envelopes)
    return max(block.generation for block in state.pool().blocks.values())


@pytest.mark.parametrize("layout", ["packed", "padded-left"])
def test_every_toggle_of_a_run_can_be_thrown(layout: str) -> None:
    """Together with the recorded switches, whatever they are; and the run ends."""
    config, envelopes = recorded(
        count=6, num_blocks=9, layout=layout, steps_in_flight=2, host_blocks=6,
        max_num_batched_tokens=7,
    )  # fmt: skip
    executor = Reexecutor(Recording.of(envelopes), MODEL)
    toggles = toggles_for(config, envelopes)
    assert len(toggles) > 6
    for name, switches in toggles.items():
        rerun = executor.run(switches)
        assert rerun.finished, name
        assert any(isinstance(e.event, InputsBuilt) for e in rerun.envelopes)
