"""Reads a trace, whole or damaged, without ever writing to it.

Opening is cheap. Of a file that was cut short only the trustworthy beginning is there; `problems`
reads any file whole, so that whoever asks it first meets no damage later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any, NamedTuple, Self

from sqlalchemy import Row, Select, func, select

from .codec import StoredRow
from .decoding import decoding_of, envelope_of, stored_row
from .digest import StepDigest, step_digests
from .errors import BadEvent, NoSuchPosition, UnreadableTrace
from .events import Envelope, RunStarted
from .lookup import Lookup
from .schema import FORMAT_VERSION, events, header, steps
from .storage import Storage, storage_of
from .stores.address import Place, place_of
from .stores.open import open_place

_POSITION = re.compile("[0-9]{1,40}")
_LAST_SEQ = (1 << 63) - 1
"""What a column can hold."""


class EndRecord(NamedTuple):
    """What a writer that came to its end wrote about the whole."""

    events: int
    last_seq: int
    last_step: int
    digest: bytes


class StepSpan(NamedTuple):
    """Where the events of one step lie; those of overlapping steps lie in between one another."""

    step: int
    first_seq: int
    last_seq: int
    events: int


class TraceReader:
    """A `*.kvtrace` file, read-only; also beside a writer that is at work.

    Raises MissingTrace, NotATrace, NewerFormat, or UnreadableTrace if nothing can be read.
    """

    def __init__(self, path: Place | str) -> None:
        self._file = open_place(place_of(path))
        self.path = self._file.path
        self._decoding = decoding_of(self._file.format, self._file.rows)
        self._lookup = Lookup(self._file.rows, self._envelope, self._file.format > 1)
        if self._file.damage is not None:
            self._go_on_with_what_can_be_read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def rest(self) -> None:
        """Let go of the file until the next question, so that its writer can leave it whole."""
        self._file.rest()

    # --- the whole --------------------------------------------------------------------------------

    @cached_property
    def run(self) -> RunStarted | None:
        """The run's header, if it was recorded."""
        first = self._first(_rows().where(events.c.kind == RunStarted.__name__))
        return first.event if first and isinstance(first.event, RunStarted) else None

    @property
    def size(self) -> int:
        """Bytes of the file; of a run in a database, of its payloads."""
        return self._file.size

    def storage(self) -> Storage:
        """The format, what the writer noted in the header, and what each kind of table takes."""
        return storage_of(self._file)

    @property
    def count(self) -> int:
        """Events that can be read now (a live writer adds to them)."""
        return self._file.scalar(select(func.count()).select_from(events)) or 0

    @property
    def last_seq(self) -> int | None:
        return self._file.scalar(select(func.max(events.c.seq)))

    @property
    def last_step(self) -> int:
        """The highest step; 0 before the first."""
        column = steps.c.step if self._file.damage is None else events.c.step
        return self._file.scalar(select(func.max(column))) or 0

    def digests(self) -> dict[int, bytes]:
        """Step -> chained digest, as in `step_digests`."""
        return {closed.step: closed.digest for closed in self.step_digests()}

    def step_digests(self, from_seq: int = 0) -> list[StepDigest]:
        """The digests of steps that end at `from_seq` or later, those of floats included: as the
        writer stored them, or as today's writer would, where the format is an older one."""
        if self._file.format < FORMAT_VERSION:
            return [d for d in step_digests(self.envelopes()) if d.last_seq >= from_seq]
        return self._stored_digests(from_seq)

    def _stored_digests(self, from_seq: int = 0) -> list[StepDigest]:
        query = select(steps).where(steps.c.last_seq >= from_seq).order_by(steps.c.step)
        return [self._step_digest(row) for row in self._file.rows(query)]

    @cached_property
    def end(self) -> EndRecord | None:
        """The end record, if the writer came to its end after a `RunEnded`."""
        text = self._file.scalar(select(header.c.value).where(header.c.key == "complete"))
        if text is None:
            return None
        try:
            end = json.loads(text)
            return EndRecord(
                int(end["events"]),
                int(end["last_seq"]),
                int(end["last_step"]),
                bytes.fromhex(end["digest"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def complete(self) -> bool:
        """The run ended, the writer closed, and nothing is missing by count."""
        sound = self._file.damage is None
        return sound and self.end is not None and self.end.events == self.count

    @cached_property
    def problems(self) -> list[str]:
        """Why the trace is not complete and sound, one sentence each; reads the whole file."""
        broken = self.verify_chain()
        found: list[str] = []
        if self._file.damage is not None:
            of = f"; the recording went on to seq {self.end.last_seq}" if self.end else ""
            found.append(self._file.damage + of)
        if broken is not None:
            found.append(
                f"the chain of digests is broken at step {broken}: an event there was changed, "
                "added or lost after it was recorded"
            )
        if self.end is None:
            found.append("no end record: the run was not recorded to its end")
        elif self._file.damage is None and self.end.events != self.count:
            found.append(
                f"the end record counts {self.end.events} events and the file holds {self.count}"
            )
        return found

    def verify_chain(self) -> int | None:
        """The first step whose stored digest its events don't give; None if all agree.

        Reads every event. From the first one that can't be read on, nothing is there any more.
        """
        try:
            ring = self._ring_digest()
            broken = self._first_broken_step()
            while broken is not None and ring != (ring := self._ring_digest()):
                broken = self._first_broken_step()  # its writer let the ring begin later meanwhile
        except UnreadableTrace:
            self._file.fall_back("the file is damaged")
            broken = self._first_broken_step()
        if broken is None:
            return None
        # what comes later may depend on what was lost here
        unreadable = self._first_unreadable(broken.rows[0].seq if broken.rows else 0)
        if unreadable is not None:
            self._file.fall_back(*unreadable)
        return broken.step

    # --- events -----------------------------------------------------------------------------------

    def envelopes(self, start_seq: int = 0, stop_seq: int | None = None) -> Iterator[Envelope]:
        """Events with start_seq <= seq < stop_seq in order.

        Raises UnreadableTrace at damage that neither opening nor `problems` has met before.
        """
        query = _rows().where(events.c.seq >= start_seq)
        if stop_seq is not None:
            query = query.where(events.c.seq < min(stop_seq, _LAST_SEQ))
        return self._envelopes(query)

    def find(
        self,
        *,
        block: int | None = None,
        request: str | None = None,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        """Events with start_seq <= seq < stop_seq whose kind is among `kinds`, and whose own
        fields `block` and `request` have these values; what is None restricts nothing."""
        query = _rows().where(events.c.seq >= start_seq)
        if stop_seq is not None:
            query = query.where(events.c.seq < min(stop_seq, _LAST_SEQ))
        if block is not None:
            query = query.where(events.c.block == block)
        if request is not None:
            query = query.where(events.c.request == request)
        if kinds is not None:
            query = query.where(events.c.kind.in_(kinds))
        return self._envelopes(query)

    def of_request(
        self,
        request: str,
        *,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        """Events that name a request, in a field `request` or in a list, in order."""
        return self._lookup.of_request(request, kinds, start_seq, _stop(stop_seq))

    def touching_block(
        self,
        block: int,
        *,
        group: int = 0,
        kinds: Collection[str] | None = None,
        start_seq: int = 0,
        stop_seq: int | None = None,
    ) -> Iterator[Envelope]:
        """Events about a block of a KV group, and those that list it, copy it or write into it
        (block tables apart), in order."""
        size = self.run.block_size if self.run else 0
        return self._lookup.touching_block(block, group, size, kinds, start_seq, _stop(stop_seq))

    def writes_of(
        self, slot: int, *, group: int = 0, start_seq: int = 0, stop_seq: int | None = None
    ) -> Iterator[Envelope]:
        """Events that write a slot, copies into it included, in order."""
        size = self.run.block_size if self.run else 0
        return self._lookup.writes_of(slot, group, size, start_seq, _stop(stop_seq))

    def last_write(
        self, slot: int, *, group: int = 0, stop_seq: int | None = None
    ) -> Envelope | None:
        """The last event before `stop_seq` that writes a slot; None if there is none."""
        size = self.run.block_size if self.run else 0
        return self._lookup.last_write(slot, group, size, _stop(stop_seq))

    def spans(self, start_seq: int = 0) -> list[StepSpan]:
        """Where the events of each step lie, from `start_seq` on, in the order of their first
        events; decodes none."""
        of_step: Any = (
            select(events.c.step, func.min(events.c.seq), func.max(events.c.seq), func.count())
            .where(events.c.seq >= start_seq)
            .group_by(events.c.step)
            .order_by(func.min(events.c.seq))
        )
        return [StepSpan(*row) for row in self._file.rows(of_step)]

    def at(self, seq: int) -> Envelope:
        """Raises NoSuchPosition if there is no event of that number."""
        found = self._first(_rows().where(events.c.seq == seq))
        if found is None:
            raise NoSuchPosition(
                f"{self.path} has no event {seq}; "
                f"the last is {self.last_seq}, `kvrewind info` shows what there is"
            )
        return found

    def position(self, text: str) -> int:
        """The seq of `step:seq`, or of a bare seq. Raises NoSuchPosition if the trace lacks it."""
        parts = text.strip().split(":")
        if len(parts) > 2 or not all(map(_POSITION.fullmatch, parts)):
            raise NoSuchPosition(
                f"{text!r} is not a position; write step:seq as in 9:1203, or the seq alone"
            )
        seq = int(parts[-1])
        found = self.at(seq)
        if len(parts) == 2 and found.step != int(parts[0]):
            raise NoSuchPosition(
                f"event {seq} of {self.path} belongs to step {found.step}, not {parts[0]}; "
                f"did you mean {found.position}?"
            )
        return seq

    # --- how --------------------------------------------------------------------------------------

    def _step_digest(self, row: Row[Any]) -> StepDigest:
        if type(row.last_seq) is not int or type(row.digest) is not bytes:
            raise UnreadableTrace(
                f"the digest of step {row.step} of {self.path} is damaged; "
                "`kvrewind info` tells how far the file can be trusted"
            )
        return StepDigest(*row)

    def _first(self, query: Select[Any]) -> Envelope | None:
        return next(self._envelopes(query.limit(1)), None)

    def _envelopes(self, query: Select[Any]) -> Iterator[Envelope]:
        for row in self._file.rows(query):
            yield self._envelope(row)

    def _envelope(self, row: Row[Any]) -> Envelope:
        try:
            return envelope_of(stored_row(row), self._decoding)
        except BadEvent as error:
            raise UnreadableTrace(
                f"event {row.step}:{row.seq} of {self.path} can't be read: {error}; "
                "`kvrewind info` tells how far the file can be trusted"
            ) from error

    def _ring_digest(self) -> str | None:
        """Of the events that were there before a ring began, if it is one."""
        text = self._file.scalar(select(header.c.value).where(header.c.key == "ring"))
        try:
            return None if text is None else str(json.loads(text)["digest"])
        except (ValueError, KeyError, TypeError):
            return ""  # no digest is that

    def _go_on_with_what_can_be_read(self) -> None:
        """Of what a damaged file still has: a name or a base may be among what is lost."""
        unreadable = self._first_unreadable(0)
        if unreadable is not None:
            self._file.fall_back(*unreadable)

    def _first_unreadable(self, start_seq: int) -> tuple[str, int] | None:
        """What is wrong with the first event that can't be read, and its seq."""
        for row in self._file.rows(_rows().where(events.c.seq >= start_seq)):
            try:
                envelope_of(stored_row(row), self._decoding)
            except BadEvent as error:
                return f"event {row.step}:{row.seq} is no event ({error})", row.seq
        return None

    def _first_broken_step(self) -> _BrokenStep | None:
        chain, ring = self._decoding.chain(), self._ring_digest()
        stored = iter(self._stored_digests())
        closed = next(stored, None)
        group: list[Row[Any]] = []
        for row in self._file.rows(_rows()):
            seq = row[0]
            if closed is None:
                # a live writer may have committed more since the digests were read
                stored = iter(self._stored_digests(seq))
                closed = next(stored, None)
                if closed is None:
                    return None if self._file.damage is not None else _BrokenStep(row.step, [row])
            group.append(row)
            if seq >= closed.last_seq:
                if ring is not None:
                    is_sound = chain.resume(closed, _stored_rows(group)).hex() == ring
                    ring = None
                else:
                    found = chain.close_step(closed.step, closed.last_seq, _stored_rows(group))
                    is_sound = found == closed
                if not is_sound:
                    return _BrokenStep(closed.step, group)
                group = []
                closed = next(stored, None)
        return None if closed is None else _BrokenStep(closed.step, group)


class _BrokenStep(NamedTuple):
    step: int
    rows: list[Row[Any]]
    """The step's events as they are stored now."""


def _rows() -> Select[Any]:
    return select(events).order_by(events.c.seq)


def _stored_rows(rows: list[Row[Any]]) -> Iterator[StoredRow]:
    return (StoredRow(*row) for row in rows)


def _stop(seq: int | None) -> int:
    return _LAST_SEQ if seq is None else min(seq, _LAST_SEQ)
