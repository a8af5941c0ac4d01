"""What the device meets when a captured step is replayed otherwise than it was built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.decisions import reference_answer
from kvrewind.engine.inputs import BufferUse, StepInputs
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.questions import Answer, Question, Replay
from kvrewind.engine.runner import StepOutput
from kvrewind.recorder.events import GraphReplayed, InputsBuilt, StepCompleted
from kvrewind.recorder.memory import MemorySink
from simulated import prompt

MODEL = SymbolicModel()


class Watched:
    """A runner that notes what it was given."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.tables: dict[int, list[list[int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, inputs: StepInputs) -> StepOutput:
        self.tables[inputs.step] = inputs.groups[0].block_tables.tolist()
        return self._inner.execute(inputs)


class ReplaysOtherwise:
    """Answers `Replay` as the test says, all else rightly."""

    def __init__(self, change: Callable[[BufferUse], BufferUse]) -> None:
        self._change = change

    def answer(self, question: Question) -> Answer:
        if isinstance(question, Replay):
            return self._change(question.built)
        return reference_answer(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        pass


def run(change: Callable[[BufferUse], BufferUse]) -> tuple[Watched, MemorySink]:
    config = EngineConfig(block_size=4, num_blocks=32, persistent_buffers=True)
    runner, sink = Watched(MODEL.runner(config)), MemorySink()
    prompts = [prompt("a", range(3, 10), max_new_tokens=5), prompt("b", range(20, 23))]
    policy = ReplaysOtherwise(change)
    make_engine(MODEL, config, prompts, sink, runner=runner, policy=policy).run()
    return runner, sink


def built(sink: MemorySink) -> dict[int, InputsBuilt]:
    return {e.step: e.event for e in sink.envelopes if isinstance(e.event, InputsBuilt)}


def test_rightly_the_device_meets_what_was_built() -> None:
    runner, sink = run(lambda use: use)
    for step, event in built(sink).items():
        if event.buffer:
            met = [tuple(b for b in row if b >= 0) for row in runner.tables[step]]
            assert met == [tuple(row) for row in event.block_tables]


def test_with_an_older_stamp_it_meets_the_build_before() -> None:
    runner, sink = run(lambda use: use._replace(stamp=use.stamp - 1) if use.stamp == 2 else use)
    replays = [e for e in sink.envelopes if isinstance(e.event, GraphReplayed)]
    stale = next(e for e in replays if built(sink)[e.step].stamp > e.event.stamp)
    same = (stale.event.buffer, stale.event.stamp)
    before = next(e for e in replays if (e.event.buffer, e.event.stamp) == same)
    assert before.step < stale.step
    assert runner.tables[stale.step] == runner.tables[before.step]
    echo = next(e.event for e in sink.envelopes
                if isinstance(e.event, StepCompleted) and e.step == stale.step)  # fmt: skip
    assert echo.read == [stale.event.buffer, 1]


def test_with_another_stride_the_rows_run_into_each_other() -> None:
    runner, sink = run(lambda use: use._replace(stride=1))
    step, event = next((s, e) for s, e in built(sink).items() if e.buffer and len(e.requests) == 2)
    memory = [b for row in event.block_tables for b in (*row, *[-1] * (event.stride - len(row)))]
    assert event.stride > 1
    assert runner.tables[step] == [[memory[0]], [memory[1]]]
