"""A sound engine's traces, written by hand: one method for each thing that an engine does.

A `Sound` keeps what an engine would know (counts, tables, tokens, keys, the free queue, and what
each slot holds), so every event that it writes is right. `told_right` compares all of that with the
the fold after each landed step; a twin breaks one line of the trace, with the help of `breaking`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hand import Row, Trace
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.replay.state import part_of

Line = dict[str, Any]
Held = tuple[str, int, int | None]
"""What a slot holds: (request, position, token)."""


@dataclass(frozen=True)
class Part:
    """What a step does for one request: its next `count` tokens, and drafts behind them."""

    request: str
    count: int = 1
    drafts: tuple[int, ...] = ()


@dataclass
class Flight:
    """A dispatched step: its rows, group by group, and the requests of its live rows."""

    parts: tuple[Part, ...]
    rows: dict[int, list[Row]]
    computed: dict[str, int]


class Sound(Trace):
    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.group_count: int = how.get("groups", 1)
        windows = tuple(how.get("windows", ()))
        self.window = {g: windows[g] if g < len(windows) else None for g in self.all_groups}
        self.sentinels = frozenset(how.get("sentinels", ()))
        self.layout, self.keys, self.applies = "packed", None, {}
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.places: dict[tuple[int, str], dict[int, int]] = {}
        self.holders: dict[tuple[int, int], list[tuple[str, int]]] = {}
        self.generations: dict[tuple[int, int], int] = {}
        self.key_of: dict[tuple[int, int], str] = {}
        self.free_queue = {
            g: [b for b in range(self.blocks) if b not in self.sentinels] for g in self.all_groups
        }
        self.slots: dict[tuple[int, int], Held] = {}
        self.host: dict[tuple[int, str], list[Held | None]] = {}
        self.flights: dict[int, Flight] = {}
        self.snapshots: list[tuple[int, dict[str, Any]]] = []
        self.left: set[str] = set()

    @property
    def all_groups(self) -> range:
        return range(self.group_count)

    # Requests.

    def add(self, request: str, tokens: Iterable[int], **fields: Any) -> int:
        self.tokens[request], self.computed[request] = list(tokens), 0
        return super().add(request, self.tokens[request], **fields)

    def fork(self, child: str, parent: str, count: int) -> None:
        self.event("RequestForked", request=child, parent=parent, tokens=count)
        self.computed[child] = count
        for group in self.all_groups:
            for index, block in sorted(self.places.get((group, parent), {}).items()):
                self.join(child, index, block, None, group)

    def preempt(self, request: str) -> None:
        self.event("RequestPreempted", request=request, reason="the pool is full")
        self.computed[request] = 0
        self.drop_all(request)

    def end_of(self, request: str, reason: str = "length", **fields: Any) -> int:
        seq = self.say_finished(request, reason, **fields)
        self.drop_all(request)
        return seq

    def say_finished(self, request: str, reason: str = "length", **fields: Any) -> int:
        """Its blocks are released later."""
        self.left.add(request)
        return self.event("RequestFinished", request=request, reason=reason, **fields)

    # Blocks.

    def hold(self, request: str, index: int, block: int, group: int = 0) -> int:
        """A fresh block at this index."""
        name = (group, block)
        if name in self.key_of:
            self.drop_key(block, group)
        seq = self.event(
            "BlockAllocated", block=block, request=request, index=index, group=group or None
        )
        self.generations[name] = self.generations.get(name, 0) + 1
        self.holders[name] = [(request, index)]
        self.forget_block(block, group)
        self._leave_queue(block, group)
        self.places.setdefault((group, request), {})[index] = block
        return seq

    def hold_all(self, request: str, *tables: Sequence[int | None]) -> None:
        """One table a group; None leaves a hole."""
        for group, table in enumerate(tables):
            for index, block in enumerate(table):
                if block is not None:
                    self.hold(request, index, block, group)

    def join(self, request: str, index: int, block: int, key: str | None, group: int = 0) -> int:
        """Another holder of a block: by its key, or as a fork."""
        holders = self.holders.setdefault((group, block), [])
        holders.append((request, index))
        self._leave_queue(block, group)
        self.places.setdefault((group, request), {})[index] = block
        return self.event(
            "BlockShared", block=block, request=request, index=index, ref_count=len(holders),
            key=key, group=group or None,
        )  # fmt: skip

    def hit(self, request: str, *indices: int, keys: Sequence[str], group: int = 0) -> None:
        """Map the blocks registered under these keys at these indices."""
        for index, key in zip(indices, keys, strict=True):
            block = next(b for (g, b), k in self.key_of.items() if (g, k) == (group, key))
            self.join(request, index, block, key, group)
            self.computed[request] = max(self.computed[request], (index + 1) * self.size)

    def drop(self, request: str, index: int, group: int = 0) -> int:  # type: ignore[override]
        """Release one block, and free it if nobody else holds it."""
        block = self.places[group, request].pop(index)
        return self.drop_block(request, index, block, group)

    def drop_block(self, request: str, index: int, block: int, group: int = 0) -> int:
        name = (group, block)
        self.holders[name].remove((request, index))
        count = len(self.holders[name])
        seq = self.event(
            "BlockReleased", block=block, request=request, index=index, ref_count=count,
            group=group or None,
        )  # fmt: skip
        if not count:
            cached = name in self.key_of
            self.event("BlockFreed", block=block, cached=cached, group=group or None)
            self.free_queue[group].append(block)
        return seq

    def drop_all(self, request: str) -> None:
        """Tails first."""
        for group in self.all_groups:
            for index in sorted(self.places.get((group, request), {}), reverse=True):
                self.drop(request, index, group)

    def publish(self, request: str, index: int, key: str, group: int = 0, **fields: Any) -> int:
        block = self.places[group, request][index]
        before = self.places[group, request].get(index - 1)
        parent = fields.pop("parent", None if before is None else self.key_of.get((group, before)))
        self.key_of[group, block] = key
        return self.register(
            block, key, request, self.tokens[request][index * self.size : (index + 1) * self.size],
            parent, group=group or None, **fields,
        )  # fmt: skip

    def drop_key(self, block: int, group: int = 0, reason: str = "evicted") -> int:
        key = self.key_of.pop((group, block))
        return self.unregister(block, key, reason, group=group or None)

    def own_copy(self, request: str, index: int, block: int, slots: int, group: int = 0) -> int:
        """Copy on write: a block of its own in the place of a shared one."""
        source = self.places[group, request][index]
        self.hold(request, index, block, group)
        seq = self.copy(source, block, slots, group=group or None)
        self.copy_slots(source, block, slots, group)
        self.drop_block(request, index, source, group)
        return seq

    def copy_slots(self, source: int, block: int, slots: int, group: int = 0) -> None:
        for offset in range(slots):
            held = self.slots.get((group, source * self.size + offset))
            if held is not None:
                self.slots[group, block * self.size + offset] = held

    def scrub(self, block: int, how: str, group: int = 0) -> int:
        self.forget_block(block, group)
        return self.event("BlockScrubbed", block=block, how=how, group=group or None)

    def forget_block(self, block: int, group: int = 0) -> None:
        for slot in range(block * self.size, (block + 1) * self.size):
            self.slots.pop((group, slot), None)

    def _leave_queue(self, block: int, group: int) -> None:
        if block in self.free_queue[group]:
            self.free_queue[group].remove(block)

    # Steps.

    def row(self, part: Part, group: int = 0) -> Row:
        computed = self.computed[part.request]
        known = self.tokens[part.request][computed : computed + part.count]
        tokens = (*known, *(-1 for _ in range(part.count - len(known))), *part.drafts)
        is_prefill = computed + part.count < len(self.tokens[part.request]) or part.count > 1
        is_prefill |= computed + part.count <= self.prompt_length(part.request)
        places = self.places.get((group, part.request), {})
        blocks = -(-(computed + len(tokens)) // self.size)
        table = tuple(places.get(index, -1) for index in range(blocks))
        return Row(part.request, tokens, table, computed, "prefill" if is_prefill else "decode")

    def prompt_length(self, request: str) -> int:
        added = (x for x in self.lines if x["kind"] == "RequestAdded" and x["request"] == request)
        return len(next(added)["prompt_tokens"])

    def laid_out(self, rows: list[Row]) -> list[Row]:
        """With the pads of the layout between the rows."""
        if not self.layout.startswith("padded"):
            return rows
        longest = max(len(row.tokens) for row in rows)
        out: list[Row] = []
        for row in rows:
            pads = [Row(None, (0,) * (longest - len(row.tokens)))]
            pads = pads if longest > len(row.tokens) else []
            out += [*pads, row] if self.layout == "padded-left" else [row, *pads]
        return out

    def send(
        self, number: int, *parts: Part, known: bool = True, pads: int = 0, **built: Any
    ) -> None:
        """Schedule, build, mask and dispatch a step. `known`: the host knows its tokens."""
        self.number = number
        rows = {
            g: self.laid_out([self.row(p, g) for p in parts]) + [Row(None, (0,))] * pads
            for g in self.all_groups
        }
        computed = {part.request: self.computed[part.request] for part in parts}
        self.flights[number] = Flight(parts, rows, computed)
        self.schedule(rows[0])
        for group in self.all_groups:
            told = {} if known else {"tokens": None}
            self.build(rows[group], group=group or None, **(told | built))
        for group in self.all_groups:
            self.mask(
                rows[group], self.keys, None, self.window[group], group=group or None,
                **self.applies,
            )  # fmt: skip
        self.event("StepDispatched")
        for part in parts:
            self.computed[part.request] += part.count + len(part.drafts)

    def land(self, number: int, **sampled: int | Sequence[int]) -> None:
        """Write, complete and sample a step; a request may get its token from its parent's row."""
        self.write_slots(number)
        self.complete(number)
        self.say(number, **sampled)
        self.snapshot()

    def write_slots(self, number: int) -> None:
        self.number = number
        flight = self.flights[number]
        for group in self.all_groups:
            rows = [self._as_known(row) for row in flight.rows[group] if row.request is not None]
            drafts = {part.request: len(part.drafts) for part in flight.parts}
            for kind in ("prefill", "decode", "draft"):
                written = [
                    (row, p, token)
                    for row in rows
                    for p, token in zip(row.positions, row.tokens, strict=True)
                    if self._kind_of(row, p, drafts) == kind and row.slot(p, self.size) >= 0
                ]
                if not written:
                    continue
                self.event(
                    "SlotsWritten", write=kind, requests=[row.request for row, _, _ in written],
                    positions=[p for _, p, _ in written], tokens=[token for _, _, token in written],
                    slots=[row.slot(p, self.size) for row, p, _ in written], group=group or None,
                )  # fmt: skip
                for row, p, token in written:
                    self.slots[group, row.slot(p, self.size)] = (str(row.request), p, token)

    def _as_known(self, row: Row) -> Row:
        """Its tokens, as they are known by now."""
        own = self.tokens[str(row.request)]
        tokens = tuple(
            own[p] if token == -1 and p < len(own) else token
            for p, token in zip(row.positions, row.tokens, strict=True)
        )
        return Row(row.request, tokens, row.table, row.computed, row.phase)

    def _kind_of(self, row: Row, position: int, drafts: dict[str, int]) -> str:
        if position >= row.seq_len - drafts.get(str(row.request), 0):
            return "draft"
        return row.phase

    def complete(self, number: int, **fields: Any) -> int:
        return self.event("StepCompleted", number, **fields)

    def say(self, number: int, **sampled: int | Sequence[int]) -> None:
        """Tokens by request. Drafts are verified against them first: those that agree stand."""
        flight = self.flights[number]
        rows = flight.rows[0]
        names, tokens, positions, numbers = [], [], [], []
        for part in flight.parts:
            if part.drafts and part.request in sampled:
                self._verify(flight, part, _many(sampled[part.request]))
        for request, drawn in sampled.items():
            source = self._row_for(request, rows)
            for token in _many(drawn):
                names.append(request), tokens.append(token), numbers.append(source)
                positions.append(len(self.tokens[request]))
                self.tokens[request].append(token)
        if names:
            self.event(
                "TokensSampled", number, requests=names, tokens=tokens, positions=positions,
                rows=numbers,
            )  # fmt: skip

    def _row_for(self, request: str, rows: list[Row]) -> int:
        wanted = [row.request for row in rows]
        if request in wanted:
            return wanted.index(request)
        return wanted.index(request.split("/")[0])

    def _verify(self, flight: Flight, part: Part, drawn: tuple[int, ...]) -> None:
        accepted = len(drawn) - 1
        assert part.drafts[:accepted] == drawn[:accepted]
        first = flight.computed[part.request] + 1
        self.event(
            "DraftVerified", request=part.request, proposed=list(part.drafts), first=first,
            accepted=accepted,
        )  # fmt: skip
        self.computed[part.request] = first + accepted

    def run(self, number: int, *parts: Part, **sampled: int | Sequence[int]) -> None:
        """A whole step, one after the other."""
        self.send(number, *parts)
        self.land(number, **sampled)

    # Transfers.

    def store(self, transfer: int, host: Sequence[int], *blocks: int, group: int = 0) -> None:
        """Begin to store cached blocks."""
        keys = [self.key_of[group, block] for block in blocks]
        self.event(
            "TransferStarted", transfer=transfer, direction="store", blocks=list(blocks), keys=keys,
            host_blocks=list(host), group=group or None,
        )  # fmt: skip
        for block, key in zip(blocks, keys, strict=True):
            span = range(block * self.size, (block + 1) * self.size)
            self.host[group, key] = [self.slots.get((group, slot)) for slot in span]
            self.digest(block, key, "store", transfer, group)

    def load(
        self, transfer: int, request: str, host: Sequence[int], keys: Sequence[str],
        *blocks: int, group: int = 0,
    ) -> None:  # fmt: skip
        self.event(
            "TransferStarted", transfer=transfer, direction="load", blocks=list(blocks),
            keys=list(keys), host_blocks=list(host), request=request, group=group or None,
        )  # fmt: skip

    def loaded(
        self, transfer: int, request: str, keys: Sequence[str], *blocks: int, group: int = 0
    ) -> None:
        """The content arrives: written, digested, finished."""
        places = {b: i for i, b in self.places[group, request].items()}
        positions = [places[b] * self.size + o for b in blocks for o in range(self.size)]
        slots = [b * self.size + o for b in blocks for o in range(self.size)]
        tokens = [self.tokens[request][p] for p in positions]
        self.event(
            "SlotsWritten", write="transfer", requests=[request] * len(slots), positions=positions,
            tokens=tokens, slots=slots, group=group or None,
        )  # fmt: skip
        held = [entry for key in keys for entry in self.host[group, key]]
        for slot, entry, token in zip(slots, held, tokens, strict=True):
            assert entry is not None
            self.slots[group, slot] = (entry[0], entry[1], token)
        for block, key in zip(blocks, keys, strict=True):
            self.digest(block, key, "load", transfer, group)
        self.finish_transfer(transfer)
        self.computed[request] = max(*positions, self.computed[request] - 1) + 1

    def digest(self, block: int, key: str, at: str, transfer: int, group: int = 0) -> int:
        return self.event(
            "BlockDigested", block=block, digest=f"of {key}", at=at, transfer=transfer,
            group=group or None,
        )  # fmt: skip

    def finish_transfer(self, transfer: int, status: str = "ok") -> int:
        return self.event("TransferFinished", transfer=transfer, status=status)

    # What the fold must say.

    def snapshot(self) -> None:
        parts: dict[str, Any] = {
            "tokens": {n: tuple(t) for n, t in self.tokens.items() if n not in self.left}
        }
        for group in self.all_groups:
            tables = {
                name: dict(places)
                for (g, name), places in self.places.items()
                if g == group and places and name not in self.left
            }
            index: dict[str, list[int]] = {}
            for (g, block), key in sorted(self.key_of.items()):
                if g == group:
                    index.setdefault(key, []).append(block)
            of_pool = {
                "holders": {
                    block: sorted(held)
                    for (g, block), held in self.holders.items()
                    if g == group and held
                },
                "generations": {b: n for (g, b), n in self.generations.items() if g == group},
                "free": list(self.free_queue[group]),
                "tables": tables,
                "index": index,
                "slots": {slot: held for (g, slot), held in self.slots.items() if g == group},
            }
            parts |= {part_of(name, group): value for name, value in of_pool.items()}
        self.snapshots.append((len(self.lines), parts))

    def envelopes(self) -> list[Envelope]:
        return list(read_jsonl(io.StringIO(self.text()), "sound.jsonl"))

    def done(self) -> Sound:
        self.snapshot()
        self.end()
        return self


def _many(drawn: int | Sequence[int]) -> tuple[int, ...]:
    return (drawn,) if isinstance(drawn, int) else tuple(drawn)


def numbers(*starts: int, count: int = 4) -> Iterator[int]:
    for start in starts:
        yield from range(start, start + count)
