"""Host memory behind the pool: what goes there, what comes back, and who waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockDigested,
    BlockFreed,
    BlockRegistered,
    Envelope,
    Event,
    RequestFinished,
    SlotsWritten,
    StepScheduled,
    TransferFinished,
    TransferStarted,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check

MODEL = SymbolicModel()
SECRET = tuple(range(10, 23))  # three whole blocks of four, and a token


def prompt(name: str, tokens: Any, **fields: Any) -> Prompt:
    defaults = {"max_new_tokens": 2, "ignore_eos": True}
    return Prompt(request=name, prompt_tokens=tuple(tokens), **(defaults | fields))


def run(prompts: list[Prompt], **switches: Any) -> tuple[Engine, list[Envelope]]:
    sink = MemorySink()
    defaults = {"block_size": 4, "num_blocks": 6, "host_blocks": 8, "transfer_steps": 2}
    engine = make_engine(MODEL, EngineConfig(**(defaults | switches)), prompts, sink)
    engine.run(max_steps=200)
    assert check(sink.envelopes).verdict == "clean"
    return engine, sink.envelopes


def a_b_a(**fields: Any) -> list[Prompt]:
    """The same prompt again, after another one has taken its blocks."""
    return [
        prompt("a", SECRET),
        prompt("b", range(30, 50), arrival_step=8),
        prompt("again", SECRET, arrival_step=16, **fields),
    ]


def positions(envelopes: list[Envelope], kind: type[Event]) -> list[int]:
    return [e.seq for e in envelopes if isinstance(e.event, kind)]


def loads(envelopes: list[Envelope]) -> list[TransferStarted]:
    started = [e.event for e in envelopes if isinstance(e.event, TransferStarted)]
    return [event for event in started if event.direction == "load"]


def test_what_was_evicted_from_the_pool_comes_back_from_host_memory() -> None:
    engine, envelopes = run(a_b_a())
    (load,) = loads(envelopes)
    assert load.request == "again"
    assert len(load.blocks) == len(load.keys) == 3
    rows = [e.event for e in envelopes if isinstance(e.event, StepScheduled)]
    first = next(row for row in rows if "again" in row.requests)
    assert (first.computed, first.scheduled) == ((12,), (1,))
    assert engine.requests["again"].tokens == engine.requests["a"].tokens


def test_a_block_is_stored_once_and_only_with_its_key() -> None:
    _, envelopes = run(a_b_a())
    keys = [
        key
        for e in envelopes
        if isinstance(e.event, TransferStarted) and e.event.direction == "store"
        for key in e.event.keys
    ]
    registered = {e.event.key for e in envelopes if isinstance(e.event, BlockRegistered)}
    assert len(keys) == len(set(keys)) >= 3
    assert set(keys) <= registered


def test_a_request_runs_only_when_its_load_is_done() -> None:
    _, envelopes = run(a_b_a())
    (load,) = loads(envelopes)
    done = next(
        e for e in envelopes
        if isinstance(e.event, TransferFinished) and e.event.transfer == load.transfer
    )  # fmt: skip
    started = next(e for e in envelopes if e.event == load)
    runs = next(
        e for e in envelopes if isinstance(e.event, StepScheduled) and "again" in e.event.requests
    )
    assert started.step + 2 == done.step == runs.step
    assert started.seq < done.seq < runs.seq


def test_what_is_loaded_is_written_as_the_loaders_tokens_before_the_transfer_ends() -> None:
    _, envelopes = run(a_b_a())
    written = next(
        e for e in envelopes if isinstance(e.event, SlotsWritten) and e.event.write == "transfer"
    )
    assert written.event.tokens == SECRET[:12]
    assert set(written.event.requests) == {"again"}
    (load,) = loads(envelopes)
    end = next(e.seq for e in envelopes if isinstance(e.event, TransferFinished)
               and e.event.transfer == load.transfer)  # fmt: skip
    assert written.seq < end


def test_the_digest_of_what_is_loaded_is_that_of_what_was_stored() -> None:
    _, envelopes = run(a_b_a())
    names = {e.event.transfer: e.event for e in envelopes if isinstance(e.event, TransferStarted)}
    stored, loaded = {}, {}
    for event in (e.event for e in envelopes if isinstance(e.event, BlockDigested)):
        transfer = names[event.transfer]
        key = transfer.keys[transfer.blocks.index(event.block)]
        (stored if event.at == "store" else loaded)[key] = event.digest
    assert len(loaded) == len(set(loaded.values())) == 3
    assert all(stored[key] == digest for key, digest in loaded.items())


def test_a_block_under_way_is_not_handed_out() -> None:
    prompts = [prompt("a", SECRET), prompt("b", range(30, 50), arrival_step=3)]
    _, envelopes = run(prompts, transfer_steps=4, num_blocks=9)
    store = next(e for e in envelopes if isinstance(e.event, TransferStarted))
    end = next(e.seq for e in envelopes if isinstance(e.event, TransferFinished))
    meanwhile = envelopes[store.seq : end]
    assert any(isinstance(e.event, BlockAllocated) for e in meanwhile)
    taken = {e.event.block for e in meanwhile if isinstance(e.event, BlockAllocated)}
    assert not taken & set(store.event.blocks)


def test_an_abort_while_loading_frees_the_blocks_when_the_load_is_done() -> None:
    _, envelopes = run(a_b_a(abort_step=17))
    end = next(e for e in envelopes if isinstance(e.event, RequestFinished)
               and e.event.request == "again")  # fmt: skip
    (load,) = loads(envelopes)
    done = next(e for e in envelopes if isinstance(e.event, TransferFinished)
                and e.event.transfer == load.transfer)  # fmt: skip
    freed = [e for e in envelopes if isinstance(e.event, BlockFreed) and e.seq > end.seq]
    assert end.event.reason == "aborted"
    assert end.seq < done.seq < min(e.seq for e in freed)
    assert {e.event.block for e in freed} >= set(load.blocks)


def test_host_memory_keeps_what_was_used_last() -> None:
    texts = [range(s, s + 9) for s in (10, 30, 50, 70)]
    prompts = [prompt(f"r{i}", t, arrival_step=1 + 10 * i) for i, t in enumerate(texts)]
    prompts += [
        prompt("first", texts[0], arrival_step=60),
        prompt("late", texts[3], arrival_step=70),
    ]
    _, envelopes = run(prompts, num_blocks=3, host_blocks=4)
    assert [load.request for load in loads(envelopes)] == ["late"]


@pytest.mark.parametrize("switches", [{"host_blocks": 0}, {"prefix_cache": False}])
def test_without_host_blocks_or_sharing_nothing_moves(switches: dict[str, Any]) -> None:
    _, envelopes = run(a_b_a(), **switches)
    assert not positions(envelopes, TransferStarted)


def test_another_tenants_blocks_are_not_loaded() -> None:
    _, envelopes = run(a_b_a(tenant="other"))
    assert positions(envelopes, TransferStarted)
    assert not loads(envelopes)


def test_a_block_that_is_freed_again_while_it_is_stored_ends_the_store_first() -> None:
    prompts = [
        prompt("a", SECRET, max_new_tokens=1),
        prompt("soon", SECRET, arrival_step=3, max_new_tokens=1),
        prompt("other", range(30, 50), arrival_step=20),
        prompt("again", SECRET, arrival_step=30),
    ]
    _, envelopes = run(prompts, transfer_steps=4)
    ended = [e for e in envelopes if isinstance(e.event, TransferFinished)]
    cancelled = next(e for e in ended if e.event.status == "cancelled")
    started = next(e for e in envelopes if isinstance(e.event, TransferStarted))
    assert started.event.transfer == cancelled.event.transfer
    freed = [e for e in envelopes if isinstance(e.event, BlockFreed)
             and started.seq < e.seq and e.event.block in started.event.blocks]  # fmt: skip
    assert cancelled.seq < freed[0].seq
    assert len(loads(envelopes)) == 1  # what was given up was stored later


def blocks_freed_under_way(envelopes: list[Envelope]) -> set[int]:
    """Seqs of frees between the start and the end of a transfer of the block."""
    under_way: dict[object, tuple[int, ...]] = {}
    found: set[int] = set()
    for envelope in envelopes:
        match envelope.event:
            case TransferStarted(transfer=name, blocks=blocks):
                under_way[name] = blocks
            case TransferFinished(transfer=name):
                del under_way[name]
            case BlockFreed(block=block):
                if any(block in blocks for blocks in under_way.values()):
                    found.add(envelope.seq)
            case _:
                pass
    return found


@pytest.mark.parametrize("transfer_steps", [1, 3, 5])
def test_nothing_is_freed_from_under_a_transfer(transfer_steps: int) -> None:
    texts = [SECRET, SECRET[:9], range(30, 42), SECRET[:5]]
    prompts = [
        prompt(f"r{i}", texts[i % 4], arrival_step=1 + i, max_new_tokens=1 + i % 3)
        for i in range(16)
    ]
    _, envelopes = run(prompts, num_blocks=9, transfer_steps=transfer_steps)
    assert positions(envelopes, TransferStarted)
    assert not blocks_freed_under_way(envelopes)


def test_requests_that_want_the_last_blocks_while_others_load_come_to_an_end() -> None:
    """They could preempt each other for ever: one computes, the other one's block is loaded."""
    samples = prompt("r0", range(30, 45), n=5, max_new_tokens=1)
    tight = {"block_size": 5, "num_blocks": 3, "host_blocks": 1, "transfer_steps": 5}
    engine, envelopes = run(
        [samples], **tight, max_num_seqs=2, max_num_batched_tokens=3, granularity="sequence"
    )
    assert [len(r.tokens) for r in engine.requests.values()] == [16] * 5
    assert positions(envelopes, TransferStarted)


def test_a_load_waits_for_blocks_also_where_a_fault_left_entries_in_the_table() -> None:
    """Under a planted fault too a run ends with a verdict, never with a traceback."""
    text = tuple(range(10, 24))
    prompts = [
        prompt("a", text, n=7, max_new_tokens=17, arrival_step=4),
        prompt("b", (*text[:12], 99), max_new_tokens=3),
    ]
    config = EngineConfig(
        block_size=4, num_blocks=8, host_blocks=5, max_num_seqs=8, faults=("free-while-shared",)
    )
    sink = MemorySink()
    make_engine(MODEL, config, prompts, sink).run(max_steps=300)
    assert check(sink.envelopes).verdict == "contaminated"
