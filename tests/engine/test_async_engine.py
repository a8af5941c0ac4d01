"""The engine for asyncio: awaited tokens, many at once; whoever stops listening aborts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gated import GatedRunner
from kvrewind.engine.admission import PromptRefused, UnknownRequest
from kvrewind.engine.async_engine import AsyncEngine, AsyncStream
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.engine.serving import EngineStopped
from kvrewind.engine.stream import RequestFailed
from kvrewind.recorder.events import Event, RequestAdded, RequestFinished, StepScheduled
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.recording import Recording
from kvrewind.replay.reexecute import Reexecutor, first_divergence

MODEL = SymbolicModel()


def prompt(name: str, **how: Any) -> Prompt:
    tokens = tuple(3 + (i * i + len(name)) % 130 for i in range(9))
    return Prompt(request=name, prompt_tokens=tokens, **({"max_new_tokens": 4} | how))


def endless(name: str) -> Prompt:
    return prompt(name, max_new_tokens=15_000, ignore_eos=True)


def engine_over(sink: MemorySink, *, gated: bool = False) -> Engine:
    config = EngineConfig(block_size=4, num_blocks=5000)
    runner = MODEL.runner(config)
    return make_engine(MODEL, config, (), sink, runner=GatedRunner(runner) if gated else runner)


@asynccontextmanager
async def gated(sink: MemorySink) -> AsyncIterator[tuple[AsyncEngine, GatedRunner]]:
    engine = engine_over(sink, gated=True)
    gate = engine.runner
    assert isinstance(gate, GatedRunner)
    async with AsyncEngine(engine) as live:
        try:
            yield live, gate
        finally:
            gate.open()


def reasons(sink: MemorySink) -> dict[str, str]:
    finished = [e.event for e in sink.envelopes if isinstance(e.event, RequestFinished)]
    return {event.request: event.reason for event in finished}


def assert_sound(sink: MemorySink) -> None:
    assert check(sink.envelopes).verdict == "clean"
    rerun = Reexecutor(Recording.of(sink.envelopes), MODEL).run()
    assert first_divergence(sink.envelopes, rerun.envelopes, bits=True) is None


async def collected(live: AsyncEngine, asked: Prompt) -> list[int]:
    return [token async for token in live.generate(asked)]


async def test_many_at_once_say_what_each_says_alone() -> None:
    sink = MemorySink()
    prompts = [prompt(f"r{i}", max_new_tokens=1 + i % 9, ignore_eos=i % 3 > 0) for i in range(60)]
    alone = engine_over(MemorySink())
    alone.add(prompts)
    alone.run()
    async with AsyncEngine(engine_over(sink)) as live:
        answers = await asyncio.gather(*(collected(live, asked) for asked in prompts))
    said = {asked.request: answer for asked, answer in zip(prompts, answers, strict=True)}
    assert said == {name: r.tokens[9:] for name, r in alone.requests.items()}
    assert_sound(sink)


async def test_the_event_loop_goes_on_while_a_step_is_computed() -> None:
    async with gated(MemorySink()) as (live, gate):
        waiting = asyncio.create_task(collected(live, prompt("a", ignore_eos=True)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.open()  # from the loop: had it waited for the step, this line would not come
        assert len(await waiting) == 4


async def test_tokens_come_one_by_one() -> None:
    async with gated(MemorySink()) as (live, gate):
        stream = live.submit(prompt("a", ignore_eos=True))
        tokens = stream.tokens()
        seen = []
        for _ in range(3):
            gate.let_through()
            seen.append(await anext(tokens))
            assert not stream.done
        gate.open()
        seen += [token async for token in tokens]
        assert (len(seen), stream.finish_reason, stream.name) == (4, "length", "a")
        assert tuple(seen) == await stream.result()


async def test_cancelling_the_task_aborts_its_request() -> None:
    sink = MemorySink()
    async with AsyncEngine(engine_over(sink)) as live:
        begun = asyncio.Event()

        async def consume() -> None:
            async for _ in live.generate(endless("a")):
                begun.set()

        task = asyncio.create_task(consume())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await collected(live, prompt("b", ignore_eos=True))) == 4
    assert reasons(sink) == {"a": "aborted", "b": "length"}
    assert_sound(sink)


async def test_a_task_cancelled_before_its_first_token_aborts_too() -> None:
    sink = MemorySink()
    async with gated(sink) as (live, gate):
        task = asyncio.create_task(collected(live, endless("a")))
        await asyncio.to_thread(gate.wait_for_step)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert reasons(sink) == {"a": "aborted"}


async def test_a_task_cancelled_before_it_began_hands_nothing_in() -> None:
    sink = MemorySink()
    async with AsyncEngine(engine_over(sink)) as live:
        task = asyncio.create_task(collected(live, endless("a")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not [e for e in sink.envelopes if isinstance(e.event, RequestAdded)]


async def test_leaving_the_loop_aborts_the_request() -> None:
    sink = MemorySink()
    async with AsyncEngine(engine_over(sink)) as live:
        tokens = live.generate(endless("a"))
        async for _ in tokens:
            break
        await tokens.aclose()
        assert await collected(live, prompt("b"))
    assert reasons(sink)["a"] == "aborted"


async def test_a_request_that_ended_is_not_aborted_afterwards() -> None:
    sink = MemorySink()
    async with AsyncEngine(engine_over(sink)) as live:
        await collected(live, prompt("a", ignore_eos=True))
    assert reasons(sink) == {"a": "length"}
    assert_sound(sink)


async def test_a_timeout_is_a_cancellation_like_any_other() -> None:
    sink = MemorySink()
    async with gated(sink) as (live, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await collected(live, endless("a"))
    assert reasons(sink) == {"a": "aborted"}


async def test_a_bad_prompt_is_refused_in_the_task_that_asked() -> None:
    async with AsyncEngine(engine_over(MemorySink())) as live:
        with pytest.raises(PromptRefused, match="empty prompt"):
            await collected(live, Prompt(request="a", prompt_tokens=(), max_new_tokens=1))
        with pytest.raises(PromptRefused, match="3 samples and generate streams one"):
            await collected(live, prompt("b", n=3))
        with pytest.raises(UnknownRequest):
            live.abort("b")
        assert await collected(live, prompt("c"))
    with pytest.raises(EngineStopped):
        live.submit(prompt("late"))


async def test_a_request_submitted_goes_on_until_it_is_aborted_by_name_or_stream() -> None:
    sink = MemorySink()
    async with AsyncEngine(engine_over(sink)) as live:
        one, two = live.submit(endless("one")), live.submit(endless("two"))
        await asyncio.gather(anext(one.tokens()), anext(two.tokens()))
        one.abort()
        live.abort("two")
        assert len(await one.result()) >= 1
        assert len(await two.result()) >= 1
    assert reasons(sink) == {"one": "aborted", "two": "aborted"}


async def test_every_sample_of_a_prompt_is_streamed() -> None:
    sink = MemorySink()
    async with AsyncEngine(engine_over(sink)) as live:
        stream = live.submit(prompt("a", n=3, ignore_eos=True))
        results = await asyncio.gather(*(sample.result() for sample in stream.samples))
        assert [sample.name for sample in stream.samples] == ["a", "a/1", "a/2"]
        assert [len(result) for result in results] == [4, 4, 4]
    assert_sound(sink)


class Fallible(MemorySink):
    broken = False

    def emit(self, event: Event, step: int) -> None:
        if self.broken and isinstance(event, StepScheduled):
            raise OSError("the sink broke")
        super().emit(event, step)


async def test_what_stops_the_engine_reaches_every_task() -> None:
    sink = Fallible()
    live = AsyncEngine(engine_over(sink))
    tasks = [asyncio.create_task(collected(live, endless(f"r{i}"))) for i in range(4)]
    while len(sink.envelopes) < 50:
        await asyncio.sleep(0.001)
    sink.broken = True
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(ended, RequestFailed)
        assert isinstance(ended.__cause__, OSError)
    with pytest.raises(EngineStopped, match="the sink broke"):
        await live.close()


async def test_an_error_in_the_block_aborts_what_goes_on_and_is_told() -> None:
    sink = MemorySink()
    with pytest.raises(ZeroDivisionError):
        async with AsyncEngine(engine_over(sink)) as live:
            stream = live.submit(endless("a"))
            await anext(stream.tokens())
            raise ZeroDivisionError
    assert reasons(sink) == {"a": "aborted"}
    assert_sound(sink)


async def test_who_stops_waiting_for_the_end_gets_it_at_once() -> None:
    sink = MemorySink()
    async with gated(sink) as (live, gate):
        live.submit(endless("a"))
        await asyncio.to_thread(gate.wait_for_step)
        closing = asyncio.create_task(live.close())
        await asyncio.sleep(0)
        closing.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert reasons(sink) == {"a": "aborted"}


def test_an_event_loop_that_is_gone_does_not_stop_the_engine() -> None:
    sink = MemorySink()
    engine = engine_over(sink, gated=True)
    gate = engine.runner
    assert isinstance(gate, GatedRunner)
    kept: list[tuple[AsyncEngine, AsyncStream]] = []

    async def leave() -> None:
        live = AsyncEngine(engine)
        kept.append((live, live.submit(prompt("a", ignore_eos=True))))

    asyncio.run(leave())
    gate.open()
    live, stream = kept[0]
    asyncio.run(live.close())
    assert stream.finish_reason == "length"
    assert threading.active_count() < 10
