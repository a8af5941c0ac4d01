"""The free queue against a plain list: order of reuse, quarantine, ranks, blocks held back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.free_queue import LOWEST, FreeQueue, Order, Rank

PINNED, KEPT = Rank(is_pinned=True), Rank(retention=3)


def drain(queue: FreeQueue) -> list[int]:
    """What it hands out, one after the other."""
    out = []
    while queue.num_available:
        out.append(queue.pick())
        queue.remove(out[-1])
    return out


def test_the_block_that_has_been_free_longest_comes_first() -> None:
    queue = FreeQueue([4, 2, 9])
    queue.append(1)
    assert drain(queue) == [4, 2, 9, 1]


def test_last_freed_is_a_stack() -> None:
    queue = FreeQueue([4, 2, 9], order="last-freed")
    queue.append(1)
    assert drain(queue) == [1, 9, 2, 4]


def test_the_blocks_freed_last_stay_in_quarantine() -> None:
    queue = FreeQueue([4, 2, 9, 7], quarantine=2)
    assert (queue.num_available, drain(queue)) == (2, [4, 2])
    queue.append(5)
    assert drain(queue) == [9]
    with pytest.raises(IndexError, match="no free block"):
        queue.pick()


def test_quarantine_holds_whatever_the_ranks() -> None:
    queue = FreeQueue(quarantine=2)
    for block, rank in [(1, PINNED), (2, LOWEST), (3, LOWEST), (4, LOWEST)]:
        queue.append(block, rank)
    assert drain(queue) == [2, 1], "3 and 4 were freed last, though they are worth least"


def test_retained_blocks_go_after_others_and_pinned_ones_last() -> None:
    queue = FreeQueue()
    for block, rank in [(1, PINNED), (2, KEPT), (3, LOWEST), (4, KEPT), (5, LOWEST)]:
        queue.append(block, rank)
    assert list(queue) == [1, 2, 3, 4, 5]
    assert drain(queue) == [3, 5, 2, 4, 1]


def test_a_block_loses_its_rank_without_losing_its_place() -> None:
    queue = FreeQueue()
    for block, rank in [(1, LOWEST), (2, PINNED), (3, LOWEST)]:
        queue.append(block, rank)
    queue.rerank(2, LOWEST)
    assert drain(queue) == [1, 2, 3]


def test_a_block_held_back_keeps_its_place_and_is_not_handed_out() -> None:
    queue = FreeQueue([1, 2, 3])
    queue.hold_back(1)
    queue.hold_back(1)
    assert (queue.num_available, queue.pick(), list(queue)) == (2, 2, [1, 2, 3])
    queue.give_back(1)
    assert queue.pick() == 2, "held back twice, given back once"
    queue.give_back(1)
    assert queue.pick() == 1


def test_a_block_that_stands_twice_leaves_where_it_stands_first() -> None:
    queue = FreeQueue([1, 2])
    queue.append(1)
    queue.remove(1)
    assert list(queue) == [2, 1]
    assert 1 in queue
    queue.remove(1)
    queue.remove(1)
    assert list(queue) == [2]


def test_blocks_about_to_leave_do_not_count_as_available() -> None:
    queue = FreeQueue([1, 2, 3, 4], quarantine=1)
    assert queue.num_available_without({1, 2}) == 1
    assert queue.num_available_without([1, 1, 9]) == 2, "9 isn't in the queue"
    queue.hold_back(1)
    assert queue.num_available_without({1, 2}) == 1


RANKS = [LOWEST, LOWEST, Rank(retention=1), Rank(retention=-1), KEPT, PINNED]

actions = st.lists(
    st.tuples(st.sampled_from(["append", "append", "remove", "hold", "rerank"]), st.integers(0, 7)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(actions, st.sampled_from(["first-freed", "last-freed"]), st.integers(0, 3), st.data())
def test_any_use_of_it_agrees_with_a_plain_list(
    actions: list[tuple[str, int]], order: Order, quarantine: int, data: st.DataObject
) -> None:
    quarantine = quarantine if order == "first-freed" else 0  # one switch names either
    queue = FreeQueue(order=order, quarantine=quarantine)
    plain: list[tuple[int, Rank]] = []  # block and rank, longest free first
    held: list[int] = []
    for action, block in actions:
        if action == "append":  # a block may stand there already
            rank = data.draw(st.sampled_from(RANKS))
            queue.append(block, rank)
            plain.append((block, rank))
        elif action == "remove":
            queue.remove(block)
            if block in [b for b, _ in plain]:
                del plain[[b for b, _ in plain].index(block)]
        elif action == "hold" and block in held:
            queue.give_back(block)
            held.remove(block)
        elif action == "hold":
            queue.hold_back(block)
            held.append(block)
        elif action == "rerank":
            queue.rerank(block, KEPT)
            plain = [(b, KEPT if b == block else rank) for b, rank in plain]
        free = [(b, rank) for b, rank in plain if b not in held]
        available = free[: max(0, len(free) - quarantine)]
        assert list(queue) == [b for b, _ in plain]
        assert len(queue) == len(plain)
        assert queue.num_available == len(available)
        if available:
            best = min(rank for _, rank in available)
            same = [b for b, rank in available if rank == best]
            assert queue.pick() == same[-1 if order == "last-freed" else 0]
