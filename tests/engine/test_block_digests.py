"""What is digested when, and that a change which nobody logged shows in the next digest."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockDigested,
    BlockRegistered,
    BlockShared,
    Envelope,
    Event,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check

Place = tuple[int, int]


def engine(sink: MemorySink, model: str = "symbolic", **switches: object) -> Engine:
    config = EngineConfig(**({"block_size": 4, "num_blocks": 30, "digests": True} | switches))  # type: ignore[arg-type]
    text = tuple(3 + i % 7 for i in range(17))
    prompts = [
        Prompt(request=f"r{i}", prompt_tokens=(*text, i + 3), max_new_tokens=9, arrival_step=1 + i)
        for i in range(6)
    ]
    return make_engine(open_model(model, config), config, prompts, sink)


def changes(envelopes: Iterable[Envelope]) -> list[BlockDigested]:
    """Digests that aren't those of the same generation before."""
    known: dict[Place, object] = {}
    changed: list[BlockDigested] = []
    for event in (envelope.event for envelope in envelopes):
        if isinstance(event, BlockAllocated):
            known.pop(place(event), None)
        if not isinstance(event, BlockDigested):
            continue
        if known.setdefault(place(event), event.digest) != event.digest:
            changed.append(event)
    return changed


def place(event: BlockAllocated | BlockDigested) -> Place:
    return event.group or 0, event.block


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"steps_in_flight": 2},
        {"scrub": "nan"},
        {"model": "symbolic-windows", "num_blocks": 40},
        {"host_blocks": 10, "num_blocks": 16},
        {"model": "canary"},
    ],
    ids=str,
)
def test_the_digest_of_a_registered_block_never_changes(switches: dict[str, object]) -> None:
    sink = MemorySink()
    engine(sink, **switches).run()  # type: ignore[arg-type]
    digested = [e.event for e in sink.envelopes if isinstance(e.event, BlockDigested)]
    assert {event.at for event in digested} >= {"register", "share", "sweep"}
    assert len({event.digest for event in digested}) > 5
    assert changes(sink.envelopes) == []
    assert check(sink.envelopes).verdict == "clean"


def test_each_registration_and_each_share_of_a_cached_block_is_followed_by_a_digest() -> None:
    sink = MemorySink()
    engine(sink).run()
    events: list[Event] = [envelope.event for envelope in sink.envelopes]
    seen: set[str] = set()
    for event, after in pairwise(events):
        if isinstance(event, (BlockRegistered, BlockShared)):
            at = "register" if isinstance(event, BlockRegistered) else "share"
            assert isinstance(after, BlockDigested)
            assert (after.block, after.at) == (event.block, at)
            seen.add(at)
    assert seen == {"register", "share"}


def test_a_bit_that_flips_in_a_registered_block_is_seen_at_the_next_share_or_sweep() -> None:
    sink = MemorySink()
    run = engine(sink)
    while run.pools[0].blocks[0].entry is None:
        run.advance()
    memory = run.runner.memory.groups[0]  # type: ignore[attr-defined]
    memory.contents[0, 2] ^= 1 << 17
    for _ in range(30):
        if not changes(sink.envelopes):
            run.advance()
    change = changes(sink.envelopes)[0]
    assert (change.block, change.at) in {(0, "sweep"), (0, "share")}


def test_without_the_switch_nothing_is_digested() -> None:
    sink = MemorySink()
    engine(sink, digests=False).run()
    assert not any(isinstance(envelope.event, BlockDigested) for envelope in sink.envelopes)
