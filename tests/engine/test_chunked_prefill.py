"""Long prompts in pieces, priorities, and admission without preemption."""

from __future__ import annotations

from kvrewind.recorder.events import RequestPreempted, StepScheduled, TokensSampled
from simulated import answers, events, prompt, run


def rows_of(sink, name):
    return [
        (computed, count, phase)
        for step in events(sink, StepScheduled)
        for request, computed, count, phase in zip(
            step.requests, step.computed, step.scheduled, step.phases, strict=True
        )
        if request == name
    ]


def test_a_long_prompt_is_computed_in_pieces_that_fill_the_step() -> None:
    _, sink = run([prompt("a", range(3, 25))], max_num_batched_tokens=8)
    assert rows_of(sink, "a")[:3] == [(0, 8, "prefill"), (8, 8, "prefill"), (16, 6, "prefill")]


def test_no_token_is_chosen_before_the_last_piece() -> None:
    _, sink = run([prompt("a", range(3, 25), max_new_tokens=1)], max_num_batched_tokens=8)
    steps = [e.step for e in sink.envelopes if isinstance(e.event, TokensSampled)]
    assert steps == [3]


def test_who_decodes_goes_on_beside_a_long_prompt() -> None:
    prompts = [
        prompt("a", range(3, 8), max_new_tokens=8),
        prompt("long", range(20, 60), arrival_step=2),
    ]
    _, sink = run(prompts, max_num_batched_tokens=8)
    assert ("decode", "prefill") in {s.phases for s in events(sink, StepScheduled)}
    assert all(sum(s.scheduled) <= 8 for s in events(sink, StepScheduled))
    assert [computed for computed, _, _ in rows_of(sink, "a")] == [0, 5, 6, 7, 8, 9, 10, 11]


def test_pieces_give_the_same_answer_as_one_pass() -> None:
    whole, _ = run([prompt("a", range(3, 33), max_new_tokens=6)])
    for budget in (1, 3, 4, 7):
        pieces, _ = run(
            [prompt("a", range(3, 33), max_new_tokens=6)], max_num_batched_tokens=budget
        )
        assert answers(pieces) == answers(whole)


def test_a_request_preempted_between_two_pieces_starts_again() -> None:
    prompts = [
        prompt("a", range(3, 9), max_new_tokens=20),
        prompt("long", range(30, 52), arrival_step=2),
    ]
    engine, sink = run(prompts, max_num_batched_tokens=4, num_blocks=8)
    assert [e.request for e in events(sink, RequestPreempted)]
    alone, _ = run([prompt("long", range(30, 52))])
    assert answers(engine)["long"] == answers(alone)["long"]


def test_the_more_urgent_is_admitted_first_whoever_came_first() -> None:
    prompts = [prompt(n, range(s, s + 6), priority=p) for n, s, p in (
        ("later", 3, 1), ("first", 20, -1), ("second", 40, 0)
    )]  # fmt: skip
    _, sink = run(prompts, max_num_seqs=1)
    order = dict.fromkeys(name for s in events(sink, StepScheduled) for name in s.requests)
    assert list(order) == ["first", "second", "later"]


def test_the_least_urgent_is_preempted_even_if_it_was_admitted_first() -> None:
    prompts = [
        prompt("patient", range(3, 11), priority=5, max_new_tokens=12),
        prompt("urgent", range(20, 28), arrival_step=2, max_new_tokens=12),
    ]
    _, sink = run(prompts, num_blocks=6)
    assert {e.request for e in events(sink, RequestPreempted)} == {"patient"}


def test_without_preemption_nobody_is_admitted_who_may_not_reach_its_end() -> None:
    prompts = [prompt(n, range(s, s + 8), max_new_tokens=12) for n, s in (("a", 3), ("b", 20))]
    _, with_it = run(prompts, num_blocks=6)
    assert events(with_it, RequestPreempted)
    engine, without = run(prompts, num_blocks=6, preemption=False)
    assert not events(without, RequestPreempted)
    assert all(len(s.requests) == 1 for s in events(without, StepScheduled))
    assert all(len(said) == 12 for said in answers(engine).values())
