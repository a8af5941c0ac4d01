"""Two steps in flight: the order of what happens, and what may not happen meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine, open_model
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    BlockFreed,
    BlockReleased,
    InputsBuilt,
    RequestFinished,
    RequestPreempted,
    StepScheduled,
    TokensSampled,
)
from kvrewind.recorder.memory import MemorySink

MODEL = SymbolicModel()
OF_THE_PIPELINE = (
    "StepScheduled", "InputsBuilt", "StepDispatched", "SlotsWritten", "StepCompleted",
    "TokensSampled", "GraphReplayed",
)  # fmt: skip


def prompt(name: str, tokens: Any, **fields: Any) -> Prompt:
    defaults = {"max_new_tokens": 3, "ignore_eos": True}
    return Prompt(request=name, prompt_tokens=tuple(tokens), **(defaults | fields))


def run(prompts: list[Prompt], **switches: Any) -> tuple[Engine, MemorySink]:
    sink = MemorySink()
    config = EngineConfig(**({"block_size": 4, "num_blocks": 32, "steps_in_flight": 2} | switches))
    engine = make_engine(MODEL, config, prompts, sink)
    engine.run(max_steps=200)
    return engine, sink


def test_the_next_step_is_sent_before_the_last_completes_and_starts_after_it() -> None:
    _, sink = run([prompt("a", range(3, 8))])
    order = [(e.step, e.kind) for e in sink.envelopes if e.kind in OF_THE_PIPELINE]
    first = [(1, k) for k in ("StepScheduled", "InputsBuilt", "StepDispatched", "SlotsWritten")]
    assert order[:4] == first
    assert order[4:10] == [
        (2, "StepScheduled"),
        (2, "InputsBuilt"),
        (2, "StepDispatched"),
        (1, "StepCompleted"),
        (1, "TokensSampled"),
        (2, "SlotsWritten"),
    ]


def test_tokens_that_the_host_does_not_know_yet_are_left_out_and_written_rightly() -> None:
    engine, sink = run([prompt("a", range(3, 8))])
    built = [e.event for e in sink.envelopes if isinstance(e.event, InputsBuilt)]
    assert built[0].tokens == (3, 4, 5, 6, 7)
    assert [b.tokens for b in built[1:]] == [None, None]
    written = [e.event for e in sink.envelopes if e.kind == "SlotsWritten"]
    assert [w.tokens for w in written[1:]] == [(t,) for t in engine.requests["a"].tokens[5:7]]


def test_no_token_is_computed_for_a_request_whose_last_one_is_under_way() -> None:
    _, sink = run([prompt("a", range(3, 8), max_new_tokens=2)])
    rows = [e.event.requests for e in sink.envelopes if isinstance(e.event, StepScheduled)]
    assert rows == [("a",), ("a",)]


def test_a_token_computed_beyond_the_end_is_dropped_and_its_blocks_stay_until_then() -> None:
    spec = "the passphrase is rolune . what is the passphrase ?"
    tokens = MODEL.encode(spec)
    engine, sink = run([prompt("a", tokens, max_new_tokens=20, ignore_eos=False)])
    events = [(e.step, e.event) for e in sink.envelopes]
    ends = [i for i, (_, e) in enumerate(events) if isinstance(e, RequestFinished)]
    assert [events[i][1].reason for i in ends] == ["eos"]
    last_sent = max(e.step for e in sink.envelopes if isinstance(e.event, StepScheduled))
    completed = next(i for i, (s, e) in enumerate(events)
                     if s == last_sent and type(e).__name__ == "StepCompleted")  # fmt: skip
    released = [i for i, (_, e) in enumerate(events) if isinstance(e, BlockReleased)]
    assert ends[0] < completed < min(released)
    sampled = [e for _, e in events if isinstance(e, TokensSampled)]
    assert sum(len(e.tokens) for e in sampled) == engine.requests["a"].num_sampled
    assert len(sampled) == len({s for s, e in events if isinstance(e, StepScheduled)}) - 1


def test_an_abort_in_mid_flight_frees_nothing_before_the_step_completes() -> None:
    sink = MemorySink()
    config = EngineConfig(block_size=4, num_blocks=32, steps_in_flight=2)
    engine = make_engine(MODEL, config, [prompt("a", range(3, 8), max_new_tokens=9)], sink)
    engine.step()
    engine.step()
    engine.abort("a")
    before = len(sink.envelopes)
    engine.step()
    kinds = [(e.step, e.kind) for e in sink.envelopes[before:]]
    freed = [i for i, e in enumerate(sink.envelopes[before:]) if isinstance(e.event, BlockFreed)]
    assert kinds.index((3, "RequestFinished")) < kinds.index((2, "StepCompleted")) < freed[0]


def test_nobody_is_preempted_while_the_device_uses_their_blocks() -> None:
    prompts = [prompt(n, range(s, s + 8), max_new_tokens=12) for n, s in (("a", 3), ("b", 20))]
    _, sink = run(prompts, num_blocks=6)
    kinds = [(e.step, e.kind) for e in sink.envelopes]
    preempted = [e.step for e in sink.envelopes if isinstance(e.event, RequestPreempted)]
    assert preempted
    for step in preempted:
        at = kinds.index((step, "RequestPreempted"))
        assert kinds.index((step - 1, "StepCompleted")) < at


def test_buffers_alternate_so_that_none_is_rebuilt_while_it_is_read() -> None:
    _, sink = run([prompt("a", range(3, 8), max_new_tokens=4)], persistent_buffers=True)
    built = [e.event for e in sink.envelopes if isinstance(e.event, InputsBuilt)][1:]
    assert len({b.buffer for b in built}) == 2
    assert all(a.buffer != b.buffer for a, b in pairwise(built))


def test_one_step_at_a_time_gives_the_same_tokens() -> None:
    prompts = [prompt("a", range(3, 12)), prompt("b", range(3, 15), arrival_step=2)]
    two, _ = run(prompts)
    one, _ = run(prompts, steps_in_flight=1)
    assert {n: r.tokens for n, r in two.requests.items()} == {
        n: r.tokens for n, r in one.requests.items()
    }


def test_a_window_gives_back_no_block_that_the_step_under_way_lists() -> None:
    model = open_model("symbolic-windows", EngineConfig())
    sink = MemorySink()
    config = EngineConfig(block_size=4, num_blocks=64, steps_in_flight=2)
    engine = make_engine(model, config, [prompt("a", range(3, 40), max_new_tokens=30)], sink)
    engine.run(max_steps=200)
    listed: dict[int, set[int]] = {}
    freed = 0
    for envelope in sink.envelopes:
        event = envelope.event
        if isinstance(event, InputsBuilt) and event.group == 1:
            listed[envelope.step] = {b for row in event.block_tables for b in row}
        elif envelope.kind == "StepCompleted":
            listed.pop(envelope.step, None)
        elif isinstance(event, BlockFreed) and event.group == 1:
            freed += 1
            assert not any(event.block in blocks for blocks in listed.values())
    assert freed > 5
