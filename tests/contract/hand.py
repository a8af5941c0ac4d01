"""Traces written by hand, as JSON lines of the contract, and what `check` says of them.

A `Trace` collects events as plain objects; `step` writes a whole right step for some rows, and
takes `built`, `mask`, `written`, `sampled` to put something else in the place of a right array.
Everything goes through the JSON lines reader and comes back as the JSON output of `check`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.replay.check import check

SIZE = 4
BLOCKS = 16
Bits = list[set[int]]


@dataclass(frozen=True)
class Row:
    """One request's part of a step: these tokens, after `computed` others, in this table."""

    request: str | None
    tokens: tuple[int, ...]
    table: tuple[int, ...] = ()
    computed: int = 0
    phase: str = "prefill"

    @property
    def seq_len(self) -> int:
        return self.computed + len(self.tokens) if self.request is not None else 0

    @property
    def positions(self) -> list[int]:
        if self.request is None:
            return [0] * len(self.tokens)
        return list(range(self.computed, self.seq_len))

    def slot(self, position: int, size: int) -> int:
        index = position // size
        block = self.table[index] if index < len(self.table) else -1
        return block * size + position % size if block >= 0 else -1

    def slots(self, size: int) -> list[int]:
        if self.request is None:
            return [-1] * len(self.tokens)
        return [self.slot(p, size) for p in self.positions]


def decode(request: str, token: int, table: Sequence[int], computed: int) -> Row:
    return Row(request, (token,), tuple(table), computed, "decode")


PAD = Row(None, (0,))


@dataclass
class Seqs:
    """Where the events of a step are; None for those left out."""

    scheduled: int | None = None
    built: int | None = None
    mask: int | None = None
    dispatched: int | None = None
    written: int | None = None
    completed: int | None = None
    sampled: int | None = None


class Trace:
    def __init__(
        self,
        *,
        groups: int = 1,
        windows: Sequence[int | None] = (),
        sentinels: Sequence[int] = (),
        blocks: int = BLOCKS,
        size: int = SIZE,
        started: bool = True,
        **config: Any,
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self.size, self.blocks, self.number, self.dropped = size, blocks, 0, 0
        described = [
            {"layers": [g], "kv_heads": 1, "head_dim": 8}
            | ({"window": windows[g]} if g < len(windows) and windows[g] else {})
            for g in range(groups)
        ]
        if started:
            self.event(
                "RunStarted", engine="hand", engine_version="1", model="none", dtype="float32",
                device="cpu", num_blocks=blocks, block_size=size, groups=described,
                sentinel_blocks=list(sentinels), wall_clock="2026-01-01T00:00:00+00:00",
                config=config, versions={},
            )  # fmt: skip

    # Single events.

    def event(self, kind: str, step: int | None = None, **fields: Any) -> int:
        """Append an event; its seq."""
        if step is not None:
            self.number = step
        number = self.number if step is None else step
        kept = {name: value for name, value in fields.items() if value is not None}
        seq = len(self.lines) + self.dropped
        self.lines.append({"kind": kind, "step": number, "seq": seq, **kept})
        return seq

    def drop(self, count: int, why: str = "buffer full") -> int:
        """These many events are lost; the seq of the event that says so."""
        first, self.dropped = len(self.lines) + self.dropped, self.dropped + count
        return self.event("SpanDropped", first_seq=first, count=count, why=why)

    def add(self, request: str, tokens: Iterable[int], **fields: Any) -> int:
        return self.event(
            "RequestAdded", request=request, prompt_tokens=list(tokens), max_new_tokens=8, **fields
        )

    def alloc(self, block: int, request: str, index: int, **fields: Any) -> int:
        return self.event("BlockAllocated", block=block, request=request, index=index, **fields)

    def share(
        self, block: int, request: str, index: int, count: int, key: str | None, **fields: Any
    ) -> int:
        return self.event(
            "BlockShared", block=block, request=request, index=index, ref_count=count, key=key,
            **fields,
        )  # fmt: skip

    def release(self, block: int, request: str, index: int | None, count: int, **f: Any) -> int:
        return self.event(
            "BlockReleased", block=block, request=request, index=index, ref_count=count, **f
        )

    def free(self, block: int, cached: bool = False, **fields: Any) -> int:
        return self.event("BlockFreed", block=block, cached=cached, **fields)

    def register(
        self, block: int, key: str, request: str | None, tokens: Sequence[int],
        parent: str | None = None, **fields: Any,
    ) -> int:  # fmt: skip
        return self.event(
            "BlockRegistered", block=block, key=key, request=request, parent_key=parent,
            tokens=list(tokens), **fields,
        )  # fmt: skip

    def unregister(self, block: int, key: str, reason: str = "evicted", **fields: Any) -> int:
        return self.event("BlockUnregistered", block=block, key=key, reason=reason, **fields)

    def lookup(self, request: str, keys: Sequence[str], blocks: Sequence[int]) -> int:
        return self.event(
            "PrefixLookedUp", request=request, keys=list(keys), blocks=list(blocks),
            hit_tokens=len(blocks) * self.size,
        )  # fmt: skip

    def copy(self, source: int, destination: int, slots: int, **fields: Any) -> int:
        return self.event(
            "BlockCopied", source=source, destination=destination, slots=slots, **fields
        )

    def finish(self, request: str, reason: str = "length") -> int:
        return self.event("RequestFinished", request=request, reason=reason)

    def end(self) -> int:
        return self.event("RunEnded", reason="done")

    def admit(
        self, step: int, request: str, tokens: Sequence[int], blocks: Sequence[int], **fields: Any
    ) -> Row:
        """Add a request and give it these blocks; its prefill row."""
        self.number = step
        self.add(request, tokens, **fields)
        for index, block in enumerate(blocks):
            self.alloc(block, request, index)
        return Row(request, tuple(tokens), tuple(blocks))

    def leave(self, request: str, blocks: Sequence[int], cached: Sequence[int] = ()) -> int:
        """Finish a request that holds these blocks alone; the seq of `RequestFinished`."""
        seq = self.finish(request)
        for index, block in enumerate(blocks):
            self.release(block, request, index, 0)
            self.free(block, block in cached)
        return seq

    # Steps.

    def schedule(self, rows: Sequence[Row], **over: Any) -> int:
        live = [row for row in rows if row.request is not None]
        fields: dict[str, Any] = {
            "requests": [row.request for row in live],
            "computed": [row.computed for row in live],
            "scheduled": [len(row.tokens) for row in live],
            "phases": [row.phase for row in live],
        }
        return self.event("StepScheduled", **(fields | over))

    def build(self, rows: Sequence[Row], **over: Any) -> int:
        fields: dict[str, Any] = {
            "requests": [row.request for row in rows],
            "tokens": [token for row in rows for token in row.tokens],
            "query_lens": [len(row.tokens) for row in rows],
            "seq_lens": [row.seq_len for row in rows],
            "block_tables": [list(row.table) for row in rows],
            "positions": [p for row in rows for p in row.positions],
            "slot_mapping": [slot for row in rows for slot in row.slots(self.size)],
        }
        return self.event("InputsBuilt", **(fields | over))

    def mask(
        self,
        rows: Sequence[Row],
        keys: str | None = None,
        edit: Callable[[Bits], None] | None = None,
        window: int | None = None,
        **over: Any,
    ) -> int:
        """The right mask: by lengths, or dense with its columns as `keys` says."""
        fields: dict[str, Any] = {
            "form": "lengths" if keys is None else "dense",
            "requests": [row.request for row in rows],
            "query_lens": [len(row.tokens) for row in rows],
            "meaning": "bool_keep", "dtype": "bool", "applied": "before_softmax",
            "window": window,
        }  # fmt: skip
        if keys is not None:
            bits = self.visible(rows, keys, window)
            if edit is not None:
                edit(bits)
            fields |= {"keys": keys, "allowed": packed(bits, self.width(rows, keys))}
        return self.event("MaskBuilt", **(fields | over))

    def width(self, rows: Sequence[Row], keys: str) -> int:
        lengths = [row.seq_len for row in rows]
        widths = {
            "concatenated": sum(lengths), "pool": self.blocks * self.size, "per_row": max(lengths)
        }  # fmt: skip
        return widths[keys]

    def visible(self, rows: Sequence[Row], keys: str, window: int | None = None) -> Bits:
        """The columns that each query sees, for a right mask."""
        bits: Bits = []
        base = 0
        for row in rows:
            for position in row.positions:
                if row.request is None:
                    bits.append(set())
                    continue
                first = 0 if window is None else max(position - window + 1, 0)
                own = range(first, position + 1)
                column = {
                    "concatenated": lambda p, base=base: base + p,
                    "per_row": lambda p: p,
                    "pool": lambda p, row=row: row.slot(p, self.size),
                }[keys]
                bits.append({column(p) for p in own})
            base += row.seq_len
        return bits

    def write(self, rows: Sequence[Row], **over: Any) -> int | None:
        """One `SlotsWritten` a phase; the seq of the first."""
        first = None
        for phase in ("prefill", "decode"):
            chosen = [row for row in rows if row.phase == phase and row.request is not None]
            if not chosen:
                continue
            fields: dict[str, Any] = {
                "write": phase,
                "requests": [row.request for row in chosen for _ in row.tokens],
                "positions": [p for row in chosen for p in row.positions],
                "tokens": [token for row in chosen for token in row.tokens],
                "slots": [slot for row in chosen for slot in row.slots(self.size)],
            }
            fields |= over
            seq = self.event("SlotsWritten", **fields)
            first = seq if first is None else first
        return first

    def sample(self, of: Sequence[Row], drawn: dict[str, int], **over: Any) -> int:
        chosen = [(i, row) for i, row in enumerate(of) if row.request in drawn]
        fields: dict[str, Any] = {
            "requests": [row.request for _, row in chosen],
            "tokens": [drawn[str(row.request)] for _, row in chosen],
            "positions": [row.seq_len for _, row in chosen],
            "rows": [i for i, _ in chosen],
        }
        step = over.pop("step", None)
        return self.event("TokensSampled", step, **(fields | over))

    def step(
        self,
        number: int,
        *rows: Row,
        sampled: dict[str, int] | None = None,
        keys: str | None = None,
        edit: Callable[[Bits], None] | None = None,
        scheduled: dict[str, Any] | None = None,
        built: dict[str, Any] | None = None,
        mask: dict[str, Any] | None = None,
        written: dict[str, Any] | None = None,
        samples: dict[str, Any] | None = None,
        without: Sequence[str] = (),
        window: int | None = None,
        group: int | None = None,
    ) -> Seqs:
        """A whole step of these rows, in the contract's order."""
        self.number = number
        at, of = Seqs(), {"group": group}
        if "StepScheduled" not in without:
            at.scheduled = self.schedule(rows, **(scheduled or {}))
        if "InputsBuilt" not in without:
            at.built = self.build(rows, **(of | (built or {})))
        if "MaskBuilt" not in without:
            at.mask = self.mask(rows, keys, edit, window, **(of | (mask or {})))
        if "StepDispatched" not in without:
            at.dispatched = self.event("StepDispatched")
        if "SlotsWritten" not in without:
            at.written = self.write(rows, **(of | (written or {})))
        if "StepCompleted" not in without:
            at.completed = self.event("StepCompleted")
        if sampled:
            at.sampled = self.sample(rows, sampled, **(samples or {}))
        return at

    # The verdict.

    def text(self) -> str:
        return "".join(json.dumps(line) + "\n" for line in self.lines)

    def judged(self) -> dict[str, Any]:
        """What `kvrewind check --format json` prints of it."""
        return check(read_jsonl(io.StringIO(self.text()), "hand.jsonl")).to_json()


def packed(bits: Bits, width: int) -> str:
    """Each query's columns as whole bytes, most significant bit first, in hex."""
    count = -(-width // 8)
    rows = (sum(1 << (count * 8 - 1 - column) for column in seen) for seen in bits)
    return b"".join(row.to_bytes(count, "big") for row in rows).hex()


def clean(trace: Trace) -> None:
    """The trace is clean: no finding, nothing missing."""
    found = trace.judged()
    assert found["findings"] == [], json.dumps(found["findings"], indent=1)
    assert found["missing"] == []
    assert found["verdict"] == "clean"


def found(trace: Trace, verdict: str, *wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Exactly these findings in this order, each with at least these fields."""
    report = trace.judged()
    listing = json.dumps(report, indent=1)
    assert report["verdict"] == verdict, listing
    assert len(report["findings"]) == len(wanted), listing
    for finding, fields in zip(report["findings"], wanted, strict=True):
        got = {name: finding[name] for name in fields}
        assert got == fields, f"{got} is not {fields}\n{listing}"
    return report["findings"]


def finding(check: str, fault_class: str | None, culprit: int | None, **fields: Any) -> dict:
    """What a finding says; a root unless it says otherwise."""
    return {"check": check, "class": fault_class, "culprit_seq": culprit, "root": True, **fields}


def leak(fault_class: str | None, culprit: int | None, **fields: Any) -> dict:
    """The foreign read that a finding of that class and culprit leads to."""
    return finding("foreign-read", fault_class, culprit, **({"root": False} | fields))
