"""Several samples of one prompt: blocks shared until somebody writes into them."""

from __future__ import annotations

import pytest
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockCopied,
    BlockReleased,
    BlockShared,
    RequestAdded,
    RequestForked,
    StepScheduled,
    TokensSampled,
)
from simulated import answers, events, prompt, run


def test_samples_take_over_the_whole_prompt_and_the_first_token_from_its_row() -> None:
    _, sink = run([prompt("a", range(3, 13), n=3)])
    assert [e.request for e in events(sink, RequestAdded)] == ["a", "a/1", "a/2"]
    assert [(e.request, e.parent, e.tokens) for e in events(sink, RequestForked)] == [
        ("a/1", "a", 10),
        ("a/2", "a", 10),
    ]
    shared = [e for e in events(sink, BlockShared) if e.key is None]
    assert [(e.request, e.index) for e in shared] == [
        ("a/1", 0), ("a/1", 1), ("a/1", 2), ("a/2", 0), ("a/2", 1), ("a/2", 2),
    ]  # fmt: skip
    first = events(sink, TokensSampled)[0]
    assert (first.requests, first.rows) == (("a", "a/1", "a/2"), (0, 0, 0))
    assert first.positions == (10, 10, 10)


def test_the_prompt_of_several_samples_is_computed_once() -> None:
    _, sink = run([prompt("a", range(3, 13), n=3)])
    prefills = [
        (name, count)
        for step in events(sink, StepScheduled)
        for name, count, phase in zip(step.requests, step.scheduled, step.phases, strict=True)
        if phase == "prefill"
    ]
    assert prefills == [("a", 10)]


def test_a_shared_block_is_copied_by_all_but_the_last_who_write_into_it() -> None:
    _, sink = run([prompt("a", range(3, 13), n=3)])
    copies = events(sink, BlockCopied)
    assert [(c.source, c.slots) for c in copies] == [(2, 2), (2, 2)]
    for copy in copies:
        at = next(i for i, e in enumerate(sink.envelopes) if e.event == copy)
        before = [e.event for e in sink.envelopes[:at] if isinstance(e.event, BlockAllocated)]
        after = [e.event for e in sink.envelopes[at:] if isinstance(e.event, BlockReleased)]
        assert (before[-1].block, before[-1].index) == (copy.destination, 2)
        assert (after[0].block, after[0].index) == (copy.source, 2)


def test_a_prompt_of_whole_blocks_needs_no_copy() -> None:
    _, sink = run([prompt("a", range(3, 11), n=3)])
    assert events(sink, RequestForked)
    assert not events(sink, BlockCopied)


def test_greedy_samples_say_what_the_prompt_says_alone() -> None:
    alone, _ = run([prompt("a", range(3, 13))])
    engine, _ = run([prompt("a", range(3, 13), n=3)])
    assert set(map(tuple, answers(engine).values())) == {tuple(answers(alone)["a"])}


def test_random_samples_differ_and_depend_on_nobody_else() -> None:
    together, _ = run([prompt("a", range(3, 13), n=4, temperature=1.5, max_new_tokens=8)])
    assert len(set(map(tuple, answers(together).values()))) > 1
    beside = prompt("b", range(30, 39), max_new_tokens=8)
    mixed, _ = run([beside, prompt("a", range(3, 13), n=4, temperature=1.5, max_new_tokens=8)])
    for name, said in answers(together).items():
        assert answers(mixed)[name] == said


@pytest.mark.parametrize("switches", [{"max_num_seqs": 1}, {"num_blocks": 4, "preemption": False}])
def test_samples_without_a_seat_or_blocks_go_on_as_requests_like_any_other(switches) -> None:
    engine, sink = run([prompt("a", range(3, 13), n=3)], **switches)
    assert not events(sink, RequestForked)
    assert len({tuple(said) for said in answers(engine).values()}) == 1
    assert all(len(said) == 3 for said in answers(engine).values())


def test_samples_outlive_the_request_they_came_from() -> None:
    engine, sink = run([prompt("a", range(3, 13), n=2, max_new_tokens=9, abort_step=3)])
    assert events(sink, RequestForked)
    assert [len(said) for said in answers(engine).values()] == [2, 9]


def test_samples_of_an_aborted_prompt_go_on_alone() -> None:
    long = prompt("a", range(3, 33), n=2, abort_step=2)
    engine, sink = run([long], max_num_batched_tokens=8)
    assert not events(sink, RequestForked)
    assert [len(said) for said in answers(engine).values()] == [0, 3]


def test_a_sample_that_was_preempted_is_computed_again() -> None:
    engine, sink = run([prompt("a", range(3, 13), n=3, max_new_tokens=12)], num_blocks=9)
    assert any(e.kind == "RequestPreempted" for e in sink.envelopes)
    assert len({tuple(said) for said in answers(engine).values()}) == 1
