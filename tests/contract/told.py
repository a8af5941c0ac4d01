"""Whether the fold of a sound engine's trace is what the engine knew."""

from __future__ import annotations

from typing import Any

from hand import clean
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State, part_of
from sound import Sound


def told_right(trace: Sound) -> None:
    """The fold is what the engine knew after each step; and the trace is clean."""
    state, envelopes, at = State(), trace.envelopes(), 0
    assert trace.snapshots, "nothing was run"
    for count, expected in trace.snapshots:
        for envelope in envelopes[at:count]:
            apply(state, envelope)
        at = count
        told = parts_of(state)
        for name, value in expected.items():
            assert told[name] == value, f"{name} after event {count - 1}"
    clean(trace)


def parts_of(state: State) -> dict[str, Any]:
    """A state in the words of `Sound.snapshot`."""
    parts: dict[str, Any] = {"tokens": {n: r.tokens for n, r in state.unfinished()}}
    for group, pool in state.pools.items():
        tables = {
            name: {i: b for i, b in enumerate(pool.table(name)) if b is not None}
            for name, _ in state.unfinished()
        }
        for block in pool.blocks.values():
            assert block.ref_count == len(block.holders)
        of_pool = {
            "holders": {
                number: sorted((h.request, h.table_index) for h in block.holders)
                for number, block in pool.blocks.items()
                if block.holders
            },
            "generations": {n: b.generation for n, b in pool.blocks.items() if b.generation},
            "free": pool.free,
            "tables": {name: table for name, table in tables.items() if table},
            "index": {k: sorted(e.block for e in entries) for k, entries in pool.index.items()},
            "slots": {
                slot: (write.request, write.position, write.token)
                for slot in pool.slots
                if state.is_written(group, slot) and (write := state.writer(group, slot))
            },
        }
        parts |= {part_of(name, group): value for name, value in of_pool.items()}
    return parts
