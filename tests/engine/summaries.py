"""An engine's own state in the words of `State.summary`, to be compared with the fold."""

from __future__ import annotations

from typing import Any

from kvrewind.engine.block_pool import BlockPool
from kvrewind.engine.engine import Engine
from kvrewind.engine.request import Status
from kvrewind.replay.state import part_of


def engine_summary(engine: Engine) -> dict[str, Any]:
    """The engine's own state in the words of `State.summary`."""
    live = {n: r for n, r in engine.requests.items() if r.status is not Status.FINISHED}
    parts: dict[str, Any] = {"tokens": {n: tuple(r.tokens) for n, r in live.items()}}
    for group, pool in enumerate(engine.pools):
        tables = {name: request.tables[group].entries() for name, request in live.items()}
        parts |= {part_of(n, group): v for n, v in pool_summary(pool, tables).items()}
    return parts


def pool_summary(pool: BlockPool, tables: dict[str, tuple[int | None, ...]]) -> dict[str, Any]:
    index: dict[str, list[int]] = {}
    for entry in pool.cache.entries():
        index.setdefault(entry.key, []).append(entry.block)
    return {
        "blocks": tuple(
            (b.generation, b.ref_count, tuple(sorted(b.holders)), b.entry.key if b.entry else None)
            for b in pool.blocks
        ),
        "free": pool.free_queue(),
        "tables": {name: entries for name, entries in tables.items() if entries},
        "index": {key: tuple(sorted(blocks)) for key, blocks in index.items()},
    }
