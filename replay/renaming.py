"""Requests under other names, wherever an event or a state names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from ..recorder.decision import DecisionId
from ..recorder.events import Event, SpanDropped
from ..recorder.fields import fields_of
from .snapshot import dump, load
from .state import AwaitedCopy, Build, BuiltMask, IndexEntry, Pool, State, StepState, Transfer
from .writes import Write, WriteLog

Name = Callable[[str], str]
"""The new name of a request."""

E = TypeVar("E", bound=Event)


def renamed(event: E, name: Name) -> E:
    """The event with every request that it names under its new name."""
    changes: dict[str, Any] = {}
    for field in _naming_fields(type(event)):
        value = getattr(event, field)
        if value is None:
            continue
        if field == "requests":
            new = tuple(None if one is None else name(one) for one in value)
        elif field == "decision":
            new = _decision(value, name)
        else:
            new = name(value)
        if new != value:
            changes[field] = new
    return replace(event, **changes) if changes else event


@cache
def _naming_fields(cls: type[Event]) -> tuple[str, ...]:
    naming = ("request", "parent", "requests", "decision")
    return tuple(spec.name for spec in fields_of(cls) if spec.name in naming)


def _decision(text: str, name: Name) -> str:
    try:
        id = DecisionId.parse(text)
    except ValueError:  # another engine's
        return text
    request = name(id.request)
    return str(DecisionId(id.kind, request, id.index, id.ordinal, id.group, id.occasion))


def moved_mark(event: SpanDropped, by: int, name: Name) -> SpanDropped:
    """The event as it is in a trace whose seqs are higher by so many, the state that a ring begins
    with included. Raises BadSnapshot for a state of a later kvrewind."""
    state = event.state
    if state is not None:
        state = dump(_Move(by, name).state(load(state)))
    return replace(event, first_seq=event.first_seq + by, state=state)


class _Move:
    """Adds a number to all seqs of a state, and renames its requests."""

    def __init__(self, by: int, name: Name) -> None:
        self._by = by
        self._name = name

    def state(self, state: State) -> State:
        log = WriteLog()
        for write in state.log:
            log.append(self._write(write))
        return replace(
            state,
            seq=self._seq(state.seq),
            restored_seq=self._seq(state.restored_seq),
            log=log,
            pools={group: self._pool(pool) for group, pool in state.pools.items()},
            requests={
                self._name(name): known._replace(
                    added=renamed(known.added, self._name),
                    finished_seq=self._seq(known.finished_seq),
                )
                for name, known in state.requests.items()
            },
            steps={number: self._step(step) for number, step in state.steps.items()},
            transfers={number: self._transfer(t) for number, t in state.transfers.items()},
            stored={place: self._row(row) for place, row in state.stored.items()},
        )

    def _seq(self, seq: int | None) -> Any:
        return None if seq is None else seq + self._by

    def _maybe(self, name: str | None) -> str | None:
        return None if name is None else self._name(name)

    def _write(self, write: Write) -> Write:
        return write._replace(request=self._maybe(write.request), seq=write.seq + self._by)

    def _row(self, row: tuple[Write | None, ...]) -> tuple[Write | None, ...]:
        return tuple(None if write is None else self._write(write) for write in row)

    def _pool(self, pool: Pool) -> Pool:
        name = self._name
        return replace(
            pool,
            blocks={
                number: block._replace(
                    holders=tuple(h._replace(request=name(h.request)) for h in block.holders)
                )
                for number, block in pool.blocks.items()
            },
            tables={name(request): table for request, table in pool.tables.items()},
            kept={(name(request), i): block for (request, i), block in pool.kept.items()},
            index={key: tuple(map(self._entry, entries)) for key, entries in pool.index.items()},
            unfreed={block: seq + self._by for block, seq in pool.unfreed.items()},
            uncopied={block: seq + self._by for block, seq in pool.uncopied.items()},
            awaited={slot: tuple(map(self._copy, c)) for slot, c in pool.awaited.items()},
        )

    def _entry(self, entry: IndexEntry) -> IndexEntry:
        return entry._replace(seq=entry.seq + self._by, request=self._maybe(entry.request))

    def _copy(self, copy: AwaitedCopy) -> AwaitedCopy:
        return copy._replace(seq=copy.seq + self._by)

    def _step(self, step: StepState) -> StepState:
        name, by = self._name, self._by
        return step._replace(
            scheduled=None if step.scheduled is None else renamed(step.scheduled, name),
            scheduled_seq=self._seq(step.scheduled_seq),
            builds=tuple(Build(b.seq + by, renamed(b.event, name)) for b in step.builds),
            masks=tuple(BuiltMask(m.seq + by, renamed(m.event, name)) for m in step.masks),
            dispatched_seq=self._seq(step.dispatched_seq),
            written_seq=self._seq(step.written_seq),
            completed_seq=self._seq(step.completed_seq),
        )

    def _transfer(self, transfer: Transfer) -> Transfer:
        return Transfer(
            transfer.seq + self._by,
            renamed(transfer.event, self._name),
            tuple(self._row(row) for row in transfer.contents),
        )
