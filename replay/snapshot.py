"""A state as text and back: the keyframe with which a ring begins.

The text is base64 of compressed JSON, so that it goes unchanged through every form that a trace
may take. Writes, of which there are as many as slots, are columns of differences. The header is not
in it: a trace keeps its `RunStarted`. `docs/trace-format.md` lists the fields.

A snapshot holds what can still matter: the writes that slots point to, and the requests that are
unfinished or that some write, block or step still names. `compacted` gives that state.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Hashable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..recorder.errors import BadInput
from ..recorder.events import (
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    RunEnded,
    StepScheduled,
    TransferStarted,
)
from ..recorder.jsonl import from_json, to_json
from ..recorder.plain import canonical
from .requests import RequestState
from .state import (
    AwaitedCopy,
    Block,
    Build,
    BuiltMask,
    Holder,
    IndexEntry,
    Pool,
    State,
    StepState,
    Transfer,
)
from .writes import Epoch, Write, WriteLog

VERSION = 2
"""Version 1 had writes as plain columns, and each slot with the number of its write."""

_Row = tuple[Write | None, ...]


class BadSnapshot(BadInput):
    """A text that is no snapshot, or one of a later kvrewind."""


def dump(state: State) -> str:
    """The state, as far as it can still matter. Raises nothing on a state that was folded."""
    text = json.dumps(_Dump(state).whole(), separators=(",", ":"), default=canonical)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1)).decode()


def load(text: str) -> State:
    """The state without its header. Raises BadSnapshot."""
    try:
        data = zlib.decompress(base64.b64decode(text, validate=True))
        values = json.loads(data.decode("utf-8", "surrogatepass"))
        version = values["version"]
        if version in (1, VERSION):
            return (_Load if version == VERSION else _LoadVersion1)(values).state()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, zlib.error,
            binascii.Error, BadInput) as error:  # fmt: skip
        raise BadSnapshot(f"the state at the ring's beginning can't be read: {error}") from error
    raise BadSnapshot(
        f"the state at the ring's beginning has format {version} and this kvrewind reads "
        f"up to {VERSION}; upgrade kvrewind"
    )


def compacted(state: State) -> State:
    """The same without what can't matter any more: writes that were overwritten, and finished
    requests that nothing names."""
    found = state.copy()
    found.log = WriteLog()
    for pool in found.pools.values():
        pool.slots = {
            slot: found.log.append(state.log[index]) for slot, index in pool.slots.items()
        }
    found.requests = _requests(state)
    return found


def _requests(state: State) -> dict[str, RequestState]:
    named = _named(state)
    return {n: r for n, r in state.requests.items() if not r.is_finished or n in named}


def _named(state: State) -> set[str | None]:
    """Requests that something in the state refers to."""
    names: set[str | None] = {write.request for write in _writes(state)}
    for pool in state.pools.values():
        names.update(holder.request for block in pool.blocks.values() for holder in block.holders)
        names.update(
            name for name, table in pool.tables.items() if any(b is not None for b in table)
        )
    for step in state.steps.values():
        names.update(name for build in step.builds for name in build.event.requests)
        names.update(step.scheduled.requests if step.scheduled else ())
    names.update(transfer.event.request for transfer in state.transfers.values())
    return names


def _writes(state: State) -> Iterator[Write]:
    for pool in state.pools.values():
        yield from (state.log[index] for index in pool.slots.values())
    rows: list[_Row] = [row for t in state.transfers.values() for row in t.contents]
    for row in (*rows, *state.stored.values()):
        yield from (write for write in row if write is not None)


class _Table:
    """Values by their number, from 1 on; None is 0."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Hashable, int] = {None: 0}

    def numbers(self, values: Sequence[Hashable]) -> list[int]:
        known = self._known
        for value in dict.fromkeys(values):
            if value not in known:
                self.values.append(value)
                known[value] = len(self.values)
        return [known[value] for value in values]


class _Dump:
    def __init__(self, state: State) -> None:
        self._state = state
        self._names = _Table()
        self._kinds = _Table()
        self._epochs = _Table()
        self._writes: list[Write] = []
        self._others: dict[Write, int] = {}
        """Writes that no slot points to, by their number."""

    def whole(self) -> dict[str, Any]:
        state = self._state
        parts: dict[str, Any] = {
            "version": VERSION,
            "seq": state.seq,
            "step": state.step,
            "ended": _event(state.ended),
            "weights": state.weights,
            "adapters": list(state.adapters.items()),
            "pool_epoch": state.pool_epoch,
            "pools": [[group, self._pool(pool)] for group, pool in state.pools.items()],
            "requests": [[name, _request(known)] for name, known in _requests(state).items()],
            "steps": [[number, _step(step)] for number, step in state.steps.items()],
            "transfers": [[name, self._transfer(t)] for name, t in state.transfers.items()],
            "stored": [[group, key, self._row(row)] for (group, key), row in state.stored.items()],
        }
        return parts | {
            "names": self._names.values,
            "kinds": self._kinds.values,
            "epochs": self._epochs.values,
            "writes": self._columns(),
        }

    def _pool(self, pool: Pool) -> dict[str, Any]:
        log, first = self._state.log, len(self._writes)
        slots = sorted(pool.slots)
        self._writes += [log[pool.slots[slot]] for slot in slots]
        return {
            "block_size": pool.block_size,
            "sentinels": sorted(pool.sentinels),
            "blocks": [[number, _block(block)] for number, block in pool.blocks.items()],
            "unlisted": _block(pool.unlisted),
            "free": pool.free,
            "writes": [first, len(slots)],
            "tables": list(pool.tables.items()),
            "kept": [[*where, block] for where, block in pool.kept.items()],
            "index": list(pool.index.items()),
            "unfreed": list(pool.unfreed.items()),
            "uncopied": list(pool.uncopied.items()),
            "awaited": list(pool.awaited.items()),
        }

    def _transfer(self, transfer: Transfer) -> list[Any]:
        rows = [self._row(row) for row in transfer.contents]
        return [transfer.seq, to_json(transfer.event), rows]

    def _row(self, row: _Row) -> list[int | None]:
        return [None if write is None else self._number(write) for write in row]

    def _number(self, write: Write) -> int:
        known = self._others.get(write)
        if known is None:
            known = self._others[write] = len(self._writes)
            self._writes.append(write)
        return known

    def _columns(self) -> dict[str, Any]:
        if not self._writes:
            return {}
        columns: dict[str, Sequence[Any]] = {
            name: list(map(itemgetter(at), self._writes)) for at, name in enumerate(Write._fields)
        }
        columns["request"] = self._names.numbers(columns["request"])
        columns["kind"] = self._kinds.numbers(columns["kind"])
        columns["epoch"] = self._epochs.numbers(columns["epoch"])
        columns["generation"] = [0 if g is None else g + 1 for g in columns["generation"]]
        return {
            name: values if name == "token" else _runs(values) for name, values in columns.items()
        }


def _runs(values: Sequence[int]) -> list[list[int]]:
    """The differences of neighbours, each with how often it comes in a row: most columns go up by
    one, or not at all."""
    deltas = np.diff(np.array(values, dtype=np.int64), prepend=0)
    starts = np.flatnonzero(np.diff(deltas, prepend=deltas[0] + 1))
    counts = np.diff(starts, append=len(deltas))
    return [deltas[starts].tolist(), counts.tolist()]


def _unpacked(runs: list[list[int]]) -> list[int]:
    deltas, counts = (np.array(part, dtype=np.int64) for part in runs)
    if len(counts) and (counts.min() < 0 or counts.sum() > _MOST_WRITES):
        raise ValueError("a column of no length that a trace has")
    return np.cumsum(np.repeat(deltas, counts)).tolist()


_MOST_WRITES = 1 << 28


def _event(event: Event | None) -> Any:
    return None if event is None else to_json(event)


def _block(block: Block) -> list[Any]:
    return [
        block.generation, block.ref_count, block.holders, block.keys, block.is_free, block.is_known
    ]  # fmt: skip


def _request(known: RequestState) -> list[Any]:
    return [to_json(known.added), *known[1:]]


def _step(step: StepState) -> list[Any]:
    builds = [[build.seq, to_json(build.event)] for build in step.builds]
    masks = [[mask.seq, to_json(mask.event)] for mask in step.masks]
    return [_event(step.scheduled), step.scheduled_seq, builds, masks, *step[4:]]


class _Load:
    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._epochs = [Epoch(*epoch) for epoch in values["epochs"]]
        self._writes = self._read_writes(values)
        self._log = WriteLog()

    def _read_writes(self, values: dict[str, Any]) -> list[Write]:
        columns = {
            name: column if name == "token" else _unpacked(column)
            for name, column in values["writes"].items()
        }
        if not columns:
            return []
        names, kinds, epochs = [None, *values["names"]], values["kinds"], self._epochs
        columns["request"] = [names[number] for number in columns["request"]]
        columns["kind"] = [kinds[number - 1] for number in columns["kind"]]
        columns["epoch"] = [epochs[number - 1] for number in columns["epoch"]]
        columns["generation"] = [g - 1 if g else None for g in columns["generation"]]
        ordered = (columns[name] for name in Write._fields)
        return list(map(Write._make, zip(*ordered, strict=True)))

    def _written(self, pool: dict[str, Any]) -> Sequence[Write]:
        """The last writes of a pool's slots."""
        first, count = pool["writes"]
        return self._writes[first : first + count]

    def state(self) -> State:
        values = self._values
        return State(
            header=None,
            ended=None if values["ended"] is None else from_json(RunEnded, values["ended"]),
            seq=values["seq"],
            step=values["step"],
            pools={group: self._pool(pool) for group, pool in values["pools"]},
            requests={name: _request_of(known) for name, known in values["requests"]},
            steps={number: _step_of(step) for number, step in values["steps"]},
            log=self._log,
            weights=values["weights"],
            adapters=dict(values["adapters"]),
            pool_epoch=values["pool_epoch"],
            transfers={name: self._transfer(*parts) for name, parts in values["transfers"]},
            stored={(group, key): self._row(row) for group, key, row in values["stored"]},
        )

    def _pool(self, values: dict[str, Any]) -> Pool:
        append = self._log.append
        return Pool(
            block_size=values["block_size"],
            sentinels=frozenset(values["sentinels"]),
            blocks={number: _block_of(block) for number, block in values["blocks"]},
            unlisted=_block_of(values["unlisted"]),
            free=values["free"],
            slots={write.slot: append(write) for write in self._written(values)},
            tables={name: tuple(table) for name, table in values["tables"]},
            kept={(name, index): block for name, index, block in values["kept"]},
            index={key: tuple(map(_entry_of, entries)) for key, entries in values["index"]},
            unfreed=dict(values["unfreed"]),
            uncopied=dict(values["uncopied"]),
            awaited={
                slot: tuple(AwaitedCopy(*copy) for copy in copies)
                for slot, copies in values["awaited"]
            },
        )

    def _transfer(self, seq: int, event: dict[str, Any], rows: list[list[int | None]]) -> Transfer:
        started = from_json(TransferStarted, event)
        return Transfer(seq, started, tuple(self._row(row) for row in rows))

    def _row(self, numbers: list[int | None]) -> _Row:
        return tuple(None if number is None else self._writes[number] for number in numbers)


class _LoadVersion1(_Load):
    def _read_writes(self, values: dict[str, Any]) -> list[Write]:
        names, kinds = values["names"], values["kinds"]
        return [
            Write._make(row)._replace(
                request=None if row[0] is None else names[row[0]],
                kind=kinds[row[7]],
                epoch=self._epochs[row[9]],
            )
            for row in zip(*values["writes"], strict=True)
        ]

    def _written(self, pool: dict[str, Any]) -> Sequence[Write]:
        return [self._writes[number] for _, number in pool["slots"]]


def _block_of(values: list[Any]) -> Block:
    generation, ref_count, holders, keys, is_free, is_known = values
    return Block(
        generation, ref_count, tuple(Holder(*h) for h in holders), tuple(keys), is_free, is_known
    )


def _entry_of(values: list[Any]) -> IndexEntry:
    block, generation, seq, request, parent_key, tokens = values
    return IndexEntry(block, generation, seq, request, parent_key, tuple(tokens))


def _request_of(values: list[Any]) -> RequestState:
    added, tokens, computed, status, preemptions, taken_over, former, finished_seq = values
    return RequestState(
        from_json(RequestAdded, added), tuple(tokens), computed, status, preemptions, taken_over,
        tuple(map(tuple, former)), finished_seq,
    )  # fmt: skip


def _step_of(values: list[Any]) -> StepState:
    scheduled, scheduled_seq, builds, masks, *rest = values
    return StepState(
        None if scheduled is None else from_json(StepScheduled, scheduled),
        scheduled_seq,
        tuple(Build(seq, from_json(InputsBuilt, event)) for seq, event in builds),
        tuple(BuiltMask(seq, from_json(MaskBuilt, event)) for seq, event in masks),
        *rest,
    )
