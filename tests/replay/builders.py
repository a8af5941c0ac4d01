"""Small traces written by hand: a fluent engine that does exactly what it is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvrewind.recorder.events import (
    BlockAllocated,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockShared,
    BlockUnregistered,
    Envelope,
    Event,
    InputsBuilt,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    RunEnded,
    RunStarted,
    SlotsWritten,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TokensSampled,
)


@dataclass
class Row:
    """One request's part of a step: tokens [computed, computed + count)."""

    request: str | None
    computed: int
    count: int

    @property
    def seq_len(self) -> int:
        return self.computed + self.count


def pad(count: int = 1) -> Row:
    return Row(None, 0, count)


class Trace:
    """A list of (step, event) that grows by what its methods are called.

    It keeps counts, tables and tokens as a sound engine would, so that each event is right unless
    told otherwise; `edit` and `drop` then break one of them.
    """

    def __init__(
        self,
        num_blocks: int = 8,
        block_size: int = 4,
        groups: int = 1,
        window: int | None = None,
        sentinels: tuple[int, ...] = (),
        **config: Any,
    ) -> None:
        self.events: list[tuple[int, Event]] = []
        self.now = 0
        self.size = block_size
        self.num_blocks = num_blocks
        self.counts: dict[tuple[int, int], int] = {}
        self.tables: dict[tuple[int, str], dict[int, int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.keys: dict[int, str] = {}
        description: dict[str, Any] = {"layers": [0], "kv_heads": 1, "head_dim": 4}
        if window is not None:
            description["window"] = window
        self.emit(
            RunStarted(
                engine="by-hand",
                engine_version="1",
                model="none",
                dtype="float32",
                device="cpu",
                num_blocks=num_blocks,
                block_size=block_size,
                groups=[description] * groups,
                sentinel_blocks=sentinels,
                wall_clock="2026-01-01T00:00:00",
                config={"publish": "completed", "sharing": "global"} | config,
                versions={},
            )
        )

    def emit(self, event: Event, step: int | None = None) -> int:
        self.events.append((self.now if step is None else step, event))
        return len(self.events) - 1

    def next_step(self) -> None:
        self.now += 1

    def add(self, request: str, tokens: list[int] | range, **more: Any) -> int:
        self.tokens[request] = list(tokens)
        return self.emit(
            RequestAdded(request=request, prompt_tokens=tuple(tokens), max_new_tokens=16, **more)
        )

    def allocate(self, request: str, index: int, block: int, group: int | None = None) -> int:
        self.counts[group or 0, block] = 1
        self.tables.setdefault((group or 0, request), {})[index] = block
        return self.emit(BlockAllocated(block=block, request=request, index=index, group=group))

    def share(self, request: str, index: int, block: int, key: str | None = None, **more: Any):
        group = more.get("group") or 0
        self.counts[group, block] = self.counts.get((group, block), 0) + 1
        self.tables.setdefault((group, request), {})[index] = block
        given = {"ref_count": self.counts[group, block]} | more
        return self.emit(BlockShared(block=block, request=request, index=index, key=key, **given))

    def look_up(self, request: str, keys: list[str], blocks: list[int]) -> int:
        return self.emit(
            PrefixLookedUp(
                request=request,
                keys=tuple(keys),
                blocks=tuple(blocks),
                hit_tokens=len(blocks) * self.size,
            )
        )

    def release(self, request: str, index: int, *, free: bool = True, **more: Any) -> int:
        """Release one block; frees it when the count reaches zero."""
        group = more.get("group") or 0
        block = self.tables[group, request].pop(index)
        self.counts[group, block] -= 1
        given = {"ref_count": self.counts[group, block]} | more
        seq = self.emit(BlockReleased(block=block, request=request, index=index, **given))
        if free and self.counts[group, block] == 0:
            self.free(block, group=more.get("group"))
        return seq

    def free(self, block: int, group: int | None = None) -> int:
        return self.emit(BlockFreed(block=block, cached=block in self.keys, group=group))

    def register(
        self, request: str, index: int, key: str, parent: str | None = None, **more: Any
    ) -> int:
        group = more.get("group") or 0
        block = self.tables[group, request][index]
        self.keys[block] = key
        tokens = tuple(self.tokens[request][index * self.size : (index + 1) * self.size])
        given = {"tokens": tokens} | more
        return self.emit(
            BlockRegistered(block=block, key=key, request=request, parent_key=parent, **given)
        )

    def unregister(self, block: int, reason: str = "evicted") -> int:
        key = self.keys.pop(block)
        return self.emit(BlockUnregistered(block=block, key=key, reason=reason))  # type: ignore[arg-type]

    def finish(self, request: str, reason: str = "eos") -> int:
        """Finish and release everything, last block first, in every group."""
        seq = self.emit(RequestFinished(request=request, reason=reason))  # type: ignore[arg-type]
        self.give_up(request)
        return seq

    def give_up(self, request: str) -> None:
        for group, name in list(self.tables):
            if name == request:
                for index in sorted(self.tables[group, name], reverse=True):
                    self.release(request, index, **({"group": group} if group else {}))

    def end(self) -> int:
        return self.emit(RunEnded(reason="completed"))

    # One step and its parts.

    def step(self, *rows: Row | tuple[str, int, int], sample: dict[str, int] | None = None) -> None:
        """Schedule, build, dispatch, write, complete and sample one step."""
        built = [row if isinstance(row, Row) else Row(*row) for row in rows]
        self.schedule(*built)
        self.build(*built)
        self.emit(StepDispatched())
        self.write(*built)
        self.emit(StepCompleted())
        if sample:
            self.sample(built, sample)

    def schedule(self, *rows: Row) -> int:
        live = [row for row in rows if row.request is not None]
        return self.emit(
            StepScheduled(
                requests=tuple(str(row.request) for row in live),
                computed=tuple(row.computed for row in live),
                scheduled=tuple(row.count for row in live),
                phases=tuple(phase_of(row) for row in live),
            )
        )

    def table(self, request: str, seq_len: int, group: int = 0) -> tuple[int, ...]:
        entries = self.tables.get((group, request), {})
        return tuple(entries.get(i, -1) for i in range(-(-seq_len // self.size)))

    def slots(self, row: Row, group: int = 0) -> tuple[int, ...]:
        if row.request is None:
            return (-1,) * row.count
        entries = self.tables.get((group, row.request), {})
        return tuple(
            entries[p // self.size] * self.size + p % self.size
            for p in range(row.computed, row.seq_len)
        )

    def tokens_of(self, row: Row) -> tuple[int, ...]:
        if row.request is None:
            return (0,) * row.count
        return tuple(self.tokens[row.request][row.computed : row.seq_len])

    def build(self, *rows: Row, group: int | None = None, **more: Any) -> int:
        number = group or 0
        given: dict[str, Any] = {
            "requests": tuple(row.request for row in rows),
            "tokens": tuple(t for row in rows for t in self.tokens_of(row)),
            "query_lens": tuple(row.count for row in rows),
            "seq_lens": tuple(row.seq_len if row.request else 0 for row in rows),
            "block_tables": tuple(
                self.table(row.request, row.seq_len, number) if row.request else () for row in rows
            ),
            "positions": tuple(p for row in rows for p in range(row.computed, row.seq_len)),
            "slot_mapping": tuple(s for row in rows for s in self.slots(row, number)),
            "group": group,
        }
        return self.emit(InputsBuilt(**(given | more)))

    def write(self, *rows: Row, group: int | None = None, step: int | None = None, **more: Any):
        live = [row for row in rows if row.request is not None]
        given: dict[str, Any] = {
            "write": "prefill",
            "requests": tuple(row.request for row in live for _ in range(row.count)),
            "positions": tuple(p for row in live for p in range(row.computed, row.seq_len)),
            "tokens": tuple(t for row in live for t in self.tokens_of(row)),
            "slots": tuple(s for row in live for s in self.slots(row, group or 0)),
            "group": group,
        }
        return self.emit(SlotsWritten(**(given | more)), step)

    def sample(self, rows: list[Row], tokens: dict[str, int], **more: Any) -> int:
        order = [row.request for row in rows]
        given: dict[str, Any] = {
            "requests": tuple(tokens),
            "tokens": tuple(tokens.values()),
            "positions": tuple(len(self.tokens[name]) for name in tokens),
            "rows": tuple(order.index(name) for name in tokens),
        }
        for name, token in tokens.items():
            self.tokens[name].append(token)
        return self.emit(TokensSampled(**(given | more)))

    # Breaking one event.

    def find(self, kind: type[Event], which: int = 0) -> int:
        """The seq of the `which`-th event of that kind."""
        seqs = [seq for seq, (_, event) in enumerate(self.events) if type(event) is kind]
        return seqs[which]

    def edit(self, seq: int, **changes: Any) -> int:
        step, event = self.events[seq]
        self.events[seq] = (step, replace(event, **changes))
        return seq

    def drop(self, seq: int) -> None:
        del self.events[seq]

    def insert(self, seq: int, event: Event) -> int:
        self.events.insert(seq, (self.events[seq][0], event))
        return seq

    def envelopes(self) -> list[Envelope]:
        return [Envelope(seq, step, seq, 0, event) for seq, (step, event) in enumerate(self.events)]


def phase_of(row: Row) -> str:
    return "decode" if row.count == 1 else "prefill"


def at(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """The tuple with one entry replaced."""
    return (*values[:index], value, *values[index + 1 :])
