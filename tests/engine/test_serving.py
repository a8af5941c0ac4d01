"""An engine in a thread: submitted to from anywhere, read as it goes, and replayable."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from failing import FailingRunner
from gated import PATIENCE_S, GatedRunner
from kvrewind.engine.admission import PromptRefused, UnknownRequest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.decisions import Reference
from kvrewind.engine.engine import Engine
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.questions import Admit, Answer, Question
from kvrewind.engine.request import Prompt
from kvrewind.engine.serving import EngineStopped, ThreadedEngine
from kvrewind.engine.stream import RequestFailed, Stream
from kvrewind.recorder.events import (
    AbortRequested,
    BlockFreed,
    Envelope,
    Event,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    RunEnded,
    StepScheduled,
    TokensSampled,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.sink import Sink
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.recording import Recording
from kvrewind.replay.reexecute import Reexecutor, first_divergence

MODEL = SymbolicModel()


def prompt(name: str, length: int = 9, **how: Any) -> Prompt:
    tokens = tuple(3 + (i * i + len(name)) % 130 for i in range(length))
    return Prompt(request=name, prompt_tokens=tokens, **({"max_new_tokens": 4} | how))


def endless(name: str) -> Prompt:
    return prompt(name, max_new_tokens=15_000, ignore_eos=True)


def engine_over(sink: Sink, gated: bool = False, **switches: Any) -> Engine:
    config = EngineConfig(**({"block_size": 4, "num_blocks": 5000} | switches))
    runner = MODEL.runner(config)
    return make_engine(MODEL, config, (), sink, runner=GatedRunner(runner) if gated else runner)


def gated_engine(sink: Sink, **switches: Any) -> tuple[Engine, GatedRunner]:
    engine = engine_over(sink, gated=True, **switches)
    assert isinstance(engine.runner, GatedRunner)
    return engine, engine.runner


def told(sink: MemorySink, kind: type[Event]) -> list[Envelope]:
    return [e for e in sink.envelopes if isinstance(e.event, kind)]


def reasons(sink: MemorySink) -> dict[str, str]:
    return {e.event.request: e.event.reason for e in told(sink, RequestFinished)}  # type: ignore[attr-defined]


def assert_replays(envelopes: list[Envelope]) -> None:
    rerun = Reexecutor(Recording.of(envelopes), MODEL).run()
    divergence = first_divergence(envelopes, rerun.envelopes, bits=True)
    assert divergence is None


def test_an_answer_is_what_the_engine_gives_by_itself() -> None:
    prompts = [prompt("a"), prompt("b", 14), prompt("long", 30, max_new_tokens=12)]
    alone = engine_over(MemorySink())
    alone.add(prompts)
    alone.run()
    with ThreadedEngine(engine_over(MemorySink())) as live:
        streams = [live.submit(p) for p in prompts]
        answers = {s.name: (list(s), s.result(), s.finish_reason) for s in streams}
    for name, (iterated, result, reason) in answers.items():
        tokens = alone.requests[name].tokens[-len(result) :]
        assert tuple(iterated) == result == tuple(tokens)
        assert len(result) == alone.requests[name].num_sampled
        assert reason == alone.requests[name].finish_reason


def test_tokens_can_be_read_as_they_come_and_again_from_the_first_on() -> None:
    engine, gate = gated_engine(MemorySink())
    with ThreadedEngine(engine) as live:
        stream = live.submit(prompt("a", ignore_eos=True))
        gate.wait_for_step()
        assert (stream.read(), stream.done, stream.finish_reason) == ((), False, None)
        gate.let_through()
        gate.wait_for_step()
        tokens = stream.tokens(timeout=PATIENCE_S)
        first = next(tokens)
        assert (stream.read(), stream.done) == ((first,), False)
        gate.open()
        assert [first, *tokens] == list(stream) == list(stream.result())
        assert stream.read(seen=3) == stream.result()[3:]
        assert (len(stream.result()), stream.finish_reason, stream.error) == (4, "length", None)


def test_who_waits_for_too_long_is_told_and_may_wait_again() -> None:
    engine, gate = gated_engine(MemorySink())
    with ThreadedEngine(engine) as live:
        stream = live.submit(prompt("slow"))
        with pytest.raises(TimeoutError, match="'slow' brought no token"):
            next(stream.tokens(timeout=0.001))
        with pytest.raises(TimeoutError, match="'slow' has not ended"):
            stream.result(timeout=0.001)
        gate.open()
        assert stream.result(timeout=PATIENCE_S)


def test_what_is_handed_in_during_a_step_waits_for_the_next() -> None:
    sink = MemorySink()
    engine, gate = gated_engine(sink)
    with ThreadedEngine(engine) as live:
        a = live.submit(endless("a"))
        gate.wait_for_step()
        live.submit(prompt("b"))
        a.abort()
        gate.let_through()
        gate.wait_for_step()
        gate.open()
    assert [(e.step, e.event.request) for e in told(sink, RequestAdded)] == [(1, "a"), (2, "b")]  # type: ignore[attr-defined]
    assert [e.step for e in told(sink, AbortRequested)] == [2]
    assert a.read() == a.result()
    assert len(a.result()) == 1
    assert_replays(sink.envelopes)


def hand_in(live: ThreadedEngine, number: int, streams: list[Stream]) -> None:
    """One of many clients: some prompts at random moments, some of them aborted."""
    random = Random(number)
    for i in range(5):
        time.sleep(random.random() * 0.004)
        length, limit = random.randrange(1, 40), random.randrange(1, 20)
        asked = prompt(f"c{number}-{i}", length, max_new_tokens=limit, ignore_eos=limit % 2 == 0)
        stream = live.submit(asked)
        streams.append(stream)
        if random.random() < 0.3:
            time.sleep(random.random() * 0.002)
            stream.abort()
        elif random.random() < 0.5:
            stream.result(timeout=PATIENCE_S)


def serve_eight_clients(sink: Sink, **switches: Any) -> list[Stream]:
    streams: list[Stream] = []
    tight = {"num_blocks": 40, "max_num_seqs": 6} | switches
    with ThreadedEngine(engine_over(sink, **tight)) as live:
        clients = [
            threading.Thread(target=hand_in, args=(live, number, streams)) for number in range(8)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    return streams


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"steps_in_flight": 2},
        {"speculation": 3, "max_num_batched_tokens": 16},
        {"host_blocks": 20, "num_blocks": 24},
        {"persistent_buffers": True, "reuse": "last-freed", "scrub": "nan"},
    ],
    ids=str,
)
def test_what_eight_threads_hand_in_at_random_moments_replays_event_by_event(
    switches: dict[str, Any],
) -> None:
    sink = MemorySink()
    streams = serve_eight_clients(sink, **switches)
    assert_replays(sink.envelopes)
    assert check(sink.envelopes).verdict == "clean"
    assert len({e.step for e in told(sink, RequestAdded)}) > 8, "they came all at once"
    assert Counter(reasons(sink).values())["aborted"] > 1
    sampled = Counter(name for e in told(sink, TokensSampled) for name in e.event.requests)  # type: ignore[attr-defined]
    assert {s.name: len(s.result()) for s in streams} == {s.name: sampled[s.name] for s in streams}
    assert {s.name: s.finish_reason for s in streams} == reasons(sink)
    assert len(streams) == 40


def test_the_trace_file_of_a_live_run_replays(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "live.kvtrace") as writer:
        serve_eight_clients(writer)
    with TraceReader(tmp_path / "live.kvtrace") as trace:
        assert_replays(list(trace.envelopes()))


def test_a_request_that_can_never_be_served_is_refused_where_it_was_handed_in() -> None:
    sink = MemorySink()
    with ThreadedEngine(engine_over(sink, num_blocks=8)) as live:
        for bad, why in (
            (prompt("a", 0), "empty prompt"),
            (prompt("b", 99), "needs 26 blocks"),
            (prompt("c", max_new_tokens=0), "max_new_tokens"),
            (prompt("e", arrival_s=3.0), "arrives now"),
        ):
            with pytest.raises(PromptRefused, match=why):
                live.submit(bad)
        live.submit(prompt("d")).result()
        with pytest.raises(PromptRefused, match="'d' comes twice"):
            live.submit(prompt("d"))
    assert [e.event.request for e in told(sink, RequestAdded)] == ["d"]  # type: ignore[attr-defined]


def test_of_many_threads_that_take_one_name_one_gets_it() -> None:
    won: list[Stream] = []
    lost: list[PromptRefused] = []
    together = threading.Barrier(8)

    def take(live: ThreadedEngine) -> None:
        together.wait()
        try:
            won.append(live.submit(prompt("same")))
        except PromptRefused as refusal:
            lost.append(refusal)

    with ThreadedEngine(engine_over(MemorySink())) as live:
        threads = [threading.Thread(target=take, args=(live,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won[0].result(timeout=PATIENCE_S)
    assert (len(won), len(lost)) == (1, 7)


def test_close_waits_for_what_was_handed_in() -> None:
    sink = MemorySink()
    live = ThreadedEngine(engine_over(sink))
    streams = [live.submit(prompt(f"r{i}", ignore_eos=True)) for i in range(5)]
    live.close()
    assert [len(s.read()) for s in streams] == [4] * 5
    assert isinstance(sink.envelopes[-1].event, RunEnded)
    live.close()  # once more does no harm
    assert len(told(sink, RunEnded)) == 1
    with pytest.raises(EngineStopped, match="closed"):
        live.submit(prompt("late"))


def test_close_without_draining_aborts_what_goes_on() -> None:
    sink = MemorySink()
    engine = engine_over(sink)
    engine.add([endless("before")])
    live = ThreadedEngine(engine)
    ended = live.submit(prompt("ended"))
    ended.result()
    going = [live.submit(endless("x")), live.submit(endless("y"))]
    next(iter(going[0]))
    live.close(drain=False)
    assert {s.name: s.finish_reason for s in going} == {"x": "aborted", "y": "aborted"}
    assert reasons(sink)["before"] == "aborted"
    assert ended.finish_reason in ("length", "eos")
    assert check(sink.envelopes).verdict == "clean"
    assert_replays(sink.envelopes)


def test_close_can_be_hurried_while_it_waits() -> None:
    live = ThreadedEngine(engine_over(MemorySink()))
    stream = live.submit(endless("a"))
    waiting = threading.Thread(target=live.close)
    waiting.start()
    live.close(drain=False)
    waiting.join()
    assert stream.finish_reason in ("aborted", "length")


def test_a_block_that_raises_leaves_nothing_behind() -> None:
    sink = MemorySink()
    with (
        pytest.raises(ZeroDivisionError),
        ThreadedEngine(engine_over(sink)) as live,
    ):
        stream = live.submit(endless("a"))
        next(iter(stream))
        raise ZeroDivisionError
    assert stream.finish_reason == "aborted"
    assert check(sink.envelopes).verdict == "clean"


def test_an_abort_of_what_has_ended_or_was_aborted_does_nothing() -> None:
    sink = MemorySink()
    engine, gate = gated_engine(sink)
    with ThreadedEngine(engine) as live:
        a, b = live.submit(endless("a")), live.submit(prompt("b"))
        gate.wait_for_step()
        a.abort()
        a.abort()
        gate.open()
        b.result()
        b.abort()
        a.abort()
        live.submit(prompt("c")).result()
        with pytest.raises(UnknownRequest, match="no request 'nobody'"):
            live.abort("nobody")
    assert [e.event.request for e in told(sink, AbortRequested)] == ["a"]  # type: ignore[attr-defined]
    assert [e.event.request for e in told(sink, RequestFinished)] == ["a", "b", "c"]  # type: ignore[attr-defined]
    assert_replays(sink.envelopes)


class Fallible(MemorySink):
    """A sink that breaks when told to: outside of any step's computation."""

    at_the_break: Callable[[], None] | None = None

    def emit(self, event: Event, step: int) -> None:
        if self.at_the_break is not None and isinstance(event, StepScheduled):
            self.at_the_break()
            raise OSError("the sink broke")
        super().emit(event, step)


def test_what_stops_the_engine_reaches_all_who_wait() -> None:
    sink = Fallible()
    engine, gate = gated_engine(sink)
    live = ThreadedEngine(engine)
    ended = live.submit(prompt("ended", max_new_tokens=1))
    gate.wait_for_step()
    gate.let_through()
    ended.result()
    going = live.submit(endless("going"))
    gate.wait_for_step()
    handed_in = live.submit(prompt("handed in"))
    too_late: list[Stream] = []
    sink.at_the_break = lambda: too_late.append(live.submit(prompt("too late")))
    gate.open()
    with pytest.raises(RequestFailed):
        going.result(timeout=PATIENCE_S)
    for stream in (going, handed_in, *too_late):
        with pytest.raises(RequestFailed, match="the engine stopped: the sink broke") as failed:
            stream.result(timeout=PATIENCE_S)
        assert stream.name in str(failed.value)
        assert isinstance(failed.value.__cause__, OSError)
        assert stream.finish_reason == "error"
    seen = []
    with pytest.raises(RequestFailed):
        for token in going:
            seen.append(token)
    assert len(seen) == 1
    for refused in (live.close, lambda: live.submit(prompt("late"))):
        with pytest.raises(EngineStopped, match="the sink broke"):
            refused()
    assert len(ended.result()) == len(too_late) == 1
    assert not told(sink, RunEnded)  # so that the trace is called incomplete


class NeverAdmits(Reference):
    def answer(self, question: Question) -> Answer:
        return False if isinstance(question, Admit) else super().answer(question)


def test_an_engine_in_which_nothing_can_run_tells_all_who_wait() -> None:
    sink = MemorySink()
    engine = make_engine(MODEL, EngineConfig(), (), sink, policy=NeverAdmits())
    live = ThreadedEngine(engine)
    with pytest.raises(RequestFailed, match="nothing could run any more after 2 steps"):
        live.submit(prompt("a")).result(timeout=PATIENCE_S)
    with pytest.raises(EngineStopped):
        live.close()
    assert [e.event.reason for e in told(sink, RunEnded)] == ["did-not-finish"]  # type: ignore[attr-defined]


def test_tokens_are_kept_once_and_streams_only_as_long_as_they_go_on() -> None:
    engine = engine_over(MemorySink())
    with ThreadedEngine(engine) as live:
        stream = live.submit(prompt("a", max_new_tokens=50, ignore_eos=True))
        stream.result()
        kept = [v for v in vars(stream).values() if isinstance(v, list | tuple) and len(v) > 9]
        assert [id(v) for v in kept] == [id(engine.requests["a"].tokens)]
        live.submit(prompt("b")).result()  # another step, so that the thread is done with "a"
        forgotten = weakref.ref(stream)
        del stream, kept
        gc.collect()
        assert forgotten() is None


def test_an_idle_engine_takes_no_steps() -> None:
    engine = engine_over(MemorySink())
    with ThreadedEngine(engine) as live:
        live.submit(prompt("a")).result()
        before = engine.step_number
        time.sleep(0.02)
        assert engine.step_number == before
        live.submit(prompt("b")).result()
    assert engine.step_number > before


def test_a_request_that_is_read_by_nobody_ends_all_the_same() -> None:
    sink = MemorySink()
    with ThreadedEngine(engine_over(sink)) as live:
        live.submit(prompt("a"))
    assert reasons(sink).keys() == {"a"}
    assert told(sink, BlockFreed)


def test_every_sample_of_a_prompt_has_a_stream() -> None:
    sink = MemorySink()
    asked = prompt("a", n=3, ignore_eos=True)
    with ThreadedEngine(engine_over(sink)) as live:
        stream = live.submit(asked)
        assert [s.name for s in stream.samples] == ["a", "a/1", "a/2"]
        assert stream.samples[0] is stream
        stream.samples[1].abort()
        for taken in ("a/2", "a"):
            with pytest.raises(PromptRefused, match="comes twice"):
                live.submit(prompt(taken))
        assert len(stream.result()) == len(stream.samples[2].result()) == 4
        assert stream.samples[1].samples is stream.samples
    assert reasons(sink)["a/2"] == "length"
    assert_replays(sink.envelopes)


def test_a_step_that_raises_fails_its_streams_and_no_others() -> None:
    sink = MemorySink()
    config = EngineConfig(block_size=4, max_num_seqs=1)
    runner = FailingRunner(MODEL.runner(config), {2: "after writing some"})
    with ThreadedEngine(make_engine(MODEL, config, (), sink, runner=runner)) as live:
        failed, spared = (
            live.submit(prompt("a", ignore_eos=True)),
            live.submit(prompt("b", ignore_eos=True)),
        )
        seen = []
        with pytest.raises(RequestFailed, match="'a' failed: step 2 raised DeviceLost"):
            for token in failed:
                seen.append(token)
        assert len(seen) == 1
        assert len(spared.result()) == 4
    assert reasons(sink) == {"a": "error", "b": "length"}
    assert (failed.finish_reason, str(failed.error)[:20]) == ("error", "request 'a' failed: ")
    assert check(sink.envelopes).verdict == "clean"


def test_what_old_weights_computed_is_not_shared_after_new_ones_were_loaded() -> None:
    sink = MemorySink()
    with ThreadedEngine(engine_over(sink)) as live:
        for name, new_weights in (("a1", False), ("a2", False), ("a3", True), ("a4", False)):
            if new_weights:
                live.change_epoch(EpochChange("weights", "v2"))
            live.submit(prompt(name)).result()
    hits = {e.event.request: e.event.hit_tokens for e in told(sink, PrefixLookedUp)}  # type: ignore[attr-defined]
    assert hits == {"a1": 0, "a2": 8, "a3": 0, "a4": 8}
    assert check(sink.envelopes).verdict == "clean"
    assert_replays(sink.envelopes)
    with pytest.raises(EngineStopped):
        live.change_epoch(EpochChange("weights", "v3"))


def test_several_threads_may_read_one_stream() -> None:
    read: list[list[int]] = []
    with ThreadedEngine(engine_over(MemorySink())) as live:
        stream = live.submit(prompt("a", max_new_tokens=60, ignore_eos=True))
        readers = [threading.Thread(target=lambda: read.append(list(stream))) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert read == [list(stream.result())] * 4
    assert len(stream.result()) == 60
