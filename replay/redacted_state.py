"""The state with which a ring begins, redacted as the events that led to it would have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..recorder.events import Scalar, SpanDropped
from ..recorder.redaction import Redactor
from . import snapshot
from .requests import RequestState
from .state import Block, Build, BuiltMask, IndexEntry, Pool, State, StepState, Transfer
from .writes import Write, WriteLog

_Row = tuple[Write | None, ...]


def redacted_span(redactor: Redactor, event: SpanDropped) -> SpanDropped:
    """Of a dropped span: with its state, where it has one. Raises BadSnapshot for one that can't
    be read."""
    if event.state is None:
        return redactor.redact(event)
    state = _Redacted(redactor).state(snapshot.load(event.state))
    return replace(redactor.redact(event), state=snapshot.dump(state))


class _Redacted:
    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def state(self, state: State) -> State:
        redact, name = self._redactor.redact, self._name
        requests = {name(n): self._request(known) for n, known in state.requests.items()}
        log = WriteLog()
        for write in state.log:
            log.append(self._write(write))
        return replace(
            state,
            ended=None if state.ended is None else redact(state.ended),
            requests=requests,
            log=log,
            pools={group: self._pool(pool) for group, pool in state.pools.items()},
            steps={number: self._step(step) for number, step in state.steps.items()},
            adapters={self._redactor.name(a): epoch for a, epoch in state.adapters.items()},
            transfers={n: self._transfer(t) for n, t in state.transfers.items()},
            stored={
                (group, self._key(key)): self._row(row)
                for (group, key), row in state.stored.items()
            },
        )

    def _request(self, known: RequestState) -> RequestState:
        return known._replace(
            added=self._redactor.redact(known.added),
            tokens=self._tokens(known.tokens),
            former=tuple(map(self._tokens, known.former)),
        )

    def _pool(self, pool: Pool) -> Pool:
        name = self._name
        return replace(
            pool,
            blocks={number: self._block(block) for number, block in pool.blocks.items()},
            unlisted=self._block(pool.unlisted),
            tables={name(n): table for n, table in pool.tables.items()},
            kept={(name(n), index): block for (n, index), block in pool.kept.items()},
            index={
                self._key(key): tuple(map(self._entry, entries))
                for key, entries in pool.index.items()
            },
        )

    def _block(self, block: Block) -> Block:
        holders = tuple(h._replace(request=self._name(h.request)) for h in block.holders)
        return block._replace(holders=holders, keys=tuple(map(self._key, block.keys)))

    def _entry(self, entry: IndexEntry) -> IndexEntry:
        parent = entry.parent_key
        return entry._replace(
            request=None if entry.request is None else self._name(entry.request),
            parent_key=None if parent is None else self._key(parent),
            tokens=self._tokens(entry.tokens),
        )

    def _step(self, step: StepState) -> StepState:
        redact = self._redactor.redact
        return step._replace(
            scheduled=None if step.scheduled is None else redact(step.scheduled),
            builds=tuple(Build(build.seq, redact(build.event)) for build in step.builds),
            masks=tuple(BuiltMask(mask.seq, redact(mask.event)) for mask in step.masks),
        )

    def _transfer(self, transfer: Transfer) -> Transfer:
        event = self._redactor.redact(transfer.event)
        return transfer._replace(event=event, contents=tuple(map(self._row, transfer.contents)))

    def _row(self, row: _Row) -> _Row:
        return tuple(None if write is None else self._write(write) for write in row)

    def _write(self, write: Write) -> Write:
        return write._replace(
            request=None if write.request is None else self._name(write.request),
            token=None if write.token is None else self._tokens((write.token,))[0],
        )

    def _tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return self._redactor.hashes.tokens(tuple(tokens))

    def _key(self, key: Scalar) -> Scalar:
        return self._redactor.hashes.scalar("key", key)

    def _name(self, name: Any) -> str:
        return str(self._redactor.name(name))
