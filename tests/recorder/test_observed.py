"""A sink with observers passes everything on, and shows each step once, when it is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kvrewind.recorder.events import AbortRequested, Envelope, RunEnded, StepCompleted
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.observed import ObservedSink


def test_steps_are_shown_when_they_are_over_with_the_numbers_of_a_recorder() -> None:
    seen: list[Sequence[Envelope]] = []
    memory = MemorySink()
    sink = ObservedSink(memory, [seen.append])
    sink.emit(AbortRequested(request="a"), 1)
    sink.emit(AbortRequested(request="b"), 2)
    assert [[e.seq for e in step] for step in seen] == [[0]]
    sink.emit(StepCompleted(), 1)  # of a step that overlaps this one
    sink.step_over()
    sink.step_over()
    sink.emit(RunEnded(reason="completed"), 2)
    sink.step_over()
    assert [[e.position for e in step] for step in seen] == [["1:0"], ["2:1", "1:2"], ["2:3"]]
    shown = [(e.seq, e.step, e.event) for step in seen for e in step]
    assert shown == [(e.seq, e.step, e.event) for e in memory.envelopes]


def test_what_an_observer_raises_comes_out() -> None:
    def refuses(step: Sequence[Envelope]) -> None:
        raise ValueError(step[0].position)

    sink = ObservedSink(MemorySink(), [refuses])
    sink.emit(AbortRequested(request="a"), 1)
    with pytest.raises(ValueError, match="1:0"):
        sink.step_over()
