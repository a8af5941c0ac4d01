"""The chained digest per step."""

from __future__ import annotations

from dataclasses import replace

from kvrewind.recorder.digest import by_step, step_digests
from kvrewind.recorder.events import BlockAllocated, Envelope, Event, TokensSampled
from kvrewind.recorder.memory import MemorySink

SAMPLED = TokensSampled(requests=("a",), tokens=(9,), positions=(1,), rows=(0,), margins=(0.5,))
ALLOCATED = BlockAllocated(block=1, request="a", index=0)


def sink_of(*events: tuple[Event, int]) -> MemorySink:
    sink = MemorySink()
    for event, step in events:
        sink.emit(event, step)
    return sink


def test_a_step_digest_depends_on_all_steps_before_it() -> None:
    one = sink_of((ALLOCATED, 1), (SAMPLED, 2), (SAMPLED, 3)).step_digests()
    other = sink_of((replace(ALLOCATED, block=2), 1), (SAMPLED, 2), (SAMPLED, 3)).step_digests()
    later = sink_of((ALLOCATED, 1), (SAMPLED, 2), (replace(SAMPLED, tokens=(8,)), 3)).step_digests()
    assert all(one[step] != other[step] for step in (1, 2, 3))
    assert [one[step] == later[step] for step in (1, 2, 3)] == [True, True, False]


def test_each_column_and_the_order_count() -> None:
    plain = sink_of((ALLOCATED, 1), (SAMPLED, 1)).step_digests()
    changed = [
        sink_of((SAMPLED, 1), (ALLOCATED, 1)),
        sink_of((replace(ALLOCATED, request="b"), 1), (SAMPLED, 1)),
        sink_of((replace(ALLOCATED, block=2), 1), (SAMPLED, 1)),
        sink_of((ALLOCATED, 0), (SAMPLED, 1)),
    ]
    assert all(sink.step_digests()[1] != plain[1] for sink in changed)


def test_floats_change_only_the_digest_of_floats() -> None:
    one, other = (
        next(step_digests(sink_of((event, 1)).envelopes))
        for event in (SAMPLED, replace(SAMPLED, margins=(0.25,)))
    )
    assert one.digest == other.digest
    assert one.float_digest != other.float_digest


def test_time_and_rank_are_outside() -> None:
    one, other = (
        next(step_digests([Envelope(0, 1, t_ns, rank, ALLOCATED)]))
        for t_ns, rank in ((1, 0), (2, 3))
    )
    assert one == other


def test_an_event_of_a_lower_step_belongs_to_the_step_in_which_it_arrives() -> None:
    sink = sink_of((ALLOCATED, 1), (ALLOCATED, 2), (SAMPLED, 1), (SAMPLED, 2), (ALLOCATED, 5))
    assert [(step, [e.seq for e in group]) for step, group in by_step(sink.envelopes)] == [
        (1, [0]),
        (2, [1, 2, 3]),
        (5, [4]),
    ]
