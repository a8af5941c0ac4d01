"""The sink that keeps envelopes in a list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.sink import Sink


def test_numbers_and_digests_are_those_of_a_trace_of_the_same_events(
    make_trace: Callable[..., Path], sample_events: Callable[..., list]
) -> None:
    memory = MemorySink()
    sink: Sink = memory
    for event, step in sample_events(12, ended=True):
        sink.emit(event, step)
    with TraceReader(make_trace(12)) as trace:
        stored = list(trace.envelopes())
        assert trace.digests() == memory.step_digests()
    assert [(e.seq, e.step, e.rank, e.event) for e in stored] == [
        (e.seq, e.step, e.rank, e.event) for e in memory.envelopes
    ]
    times = [e.t_ns for e in memory.envelopes]
    assert times == sorted(times)
    assert len(memory.step_digests()) == 13
