"""What holds of any run of the engine, whatever happened in it."""

from __future__ import annotations

from collections.abc import Iterable

from kvrewind.engine.engine import Engine
from kvrewind.recorder.events import (
    BlockFreed,
    Envelope,
    InputsBuilt,
    StepCompleted,
    StepDispatched,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check


def assert_sound(engine: Engine, sink: MemorySink) -> None:
    """Nothing is found, nothing is left to do, every block is free, none was freed too early."""
    report = check(sink.envelopes)
    assert report.verdict == "clean", report.findings
    assert not engine.has_work
    for pool in engine.pools:
        assert sorted(pool.free_queue()) == list(range(engine.config.num_blocks))
    assert freed_in_flight(sink.envelopes) == []


def freed_in_flight(envelopes: Iterable[Envelope]) -> list[str]:
    """Positions of what frees a block that a step under way was given."""
    built: dict[int, set[tuple[int, int]]] = {}
    under_way: dict[int, set[tuple[int, int]]] = {}
    wrong = []
    for envelope in envelopes:
        step, event = envelope.step, envelope.event
        if isinstance(event, InputsBuilt):
            blocks = {(event.group or 0, b) for table in event.block_tables for b in table}
            built[step] = built.get(step, set()) | blocks
        elif isinstance(event, StepDispatched):
            under_way[step] = built.pop(step)
        elif isinstance(event, StepCompleted):
            del under_way[step]
        elif isinstance(event, BlockFreed):
            place = (event.group or 0, event.block)
            wrong += [envelope.position for blocks in under_way.values() if place in blocks]
    return wrong
