"""Writes a trace while the run goes on.

`emit` gives an event its seq and time and appends it to the open step; when a later step begins,
the whole step goes to a background thread (`handover`), which encodes, digests and inserts it, and
commits whole steps only. A recorder must never change a run: what goes wrong in the thread ends the
recording and is kept in `failure`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

from . import schema
from .digest import StepDigest
from .ends import Ends
from .errors import BadInput, RecordingFailed
from .events import Envelope, Event, SpanDropped
from .handover import QUEUE_EVENTS, ClosedStep, Handover, WhenFull
from .ring import Ring
from .step_encoder import StepEncoder, rows_of
from .stores.address import Place
from .stores.create import create_store

Observer = Callable[[Sequence[Envelope]], None]
"""Called in the writer's thread with the envelopes of each step, once it is committed."""

_EVENTS_PER_COMMIT = 2_000
"""Where draining a backlog pauses to commit: bounds what a kill can lose and the WAL's size."""

_GATHER_S = 0.02
"""How long steps are gathered before they are committed together. A commit a step costs as much
as its events, where steps take less than a millisecond; and a thread that rests takes no turns
from an engine that computes in Python."""

_STEPS_BEHIND = 100
"""A writer that lags more steps than this is given a turn at each further one."""


STEPS_AFTER_FREEZE = 8
"""What is recorded after the event that froze a recording: who else is affected, and how the steps
under way came out."""

_DROPPED = "the store could not keep up"


class Frozen(NamedTuple):
    """Why a recording was stopped while its run went on, and after which event."""

    reason: str
    step: int
    seq: int


class TraceWriter:
    """A sink that records into a new `*.kvtrace` file.

    Raises OutputExists if `path` exists and `force` is not given, BadOutput if it can't be
    created. Use it as a context manager, or call `close`. A trace is complete once a `RunEnded`
    was recorded and the writer closed.
    """

    def __init__(
        self,
        path: Place | str,
        *,
        force: bool = False,
        observers: Iterable[Observer] = (),
        when_full: WhenFull = "block",
        queue_events: int = QUEUE_EVENTS,
        ring: Ring | None = None,
    ) -> None:
        self.observers: list[Observer] = list(observers)
        self.failure: RecordingFailed | None = None
        """Why recording stopped early, if it did."""
        self.observer_failures: list[Exception] = []
        """What observers raised; one that raises is not called again."""
        self.events = 0
        """Events accepted."""
        self.dropped = 0
        """Events that found no room and are not in the trace; a `SpanDropped` stands for them."""
        self.frozen: Frozen | None = None
        """Set once `freeze` has taken effect."""
        self.steps = 0
        """Steps committed."""
        self.emit_s = 0.0
        """Seconds that the emitting threads spent in `emit`."""
        self.busy_s = 0.0
        """Seconds of processor time that the background thread used."""

        self._store = create_store(path, force=force)
        self.path = self._store.path
        self._start_ns = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._open: list[Envelope] = []
        self._open_step = 0
        self._next_seq = 0
        self._closed = False
        self._handover = Handover(queue_events, when_full)
        self._freeze_reason: str | None = None
        self._stop_after: int | None = None
        """How many steps are recorded in all, once that is known."""
        self._is_stopped = False
        self._ring = ring
        self._encoder = StepEncoder()
        self._last: StepDigest | None = None
        self._committed_events = 0
        self._ends = Ends()
        self._thread = threading.Thread(target=self._record, name="kvrewind-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the emitting threads ---------------------------------------------------------------------

    def emit(self, event: Event, step: int) -> None:
        """Record an event. Never raises for what happens to the file."""
        started = time.perf_counter_ns()
        with self._lock:
            self._require_open()
            if self.is_recording:
                self._begin(step)
                t_ns = time.perf_counter_ns() - self._start_ns
                self._append(Envelope(self._next_seq, step, t_ns, 0, event))
            self.emit_s += (time.perf_counter_ns() - started) * 1e-9

    def write_envelopes(self, envelopes: Iterable[Envelope]) -> None:
        """Record envelopes with their own seq, t_ns and rank, as an import does.

        Raises BadInput if a seq is not above the one before it. Stops when recording failed.
        """
        for envelope in envelopes:
            with self._lock:
                if envelope.seq < self._next_seq:
                    raise BadInput(
                        f"event {envelope.position} comes after seq {self._next_seq - 1} in "
                        f"what goes to {self.path}; sort the events by seq"
                    )
                self._require_open()
                self._begin(envelope.step, "block")
                self._append(envelope)
            if not self.is_recording:
                return

    def freeze(self, reason: str) -> None:
        """Keep what is recorded and a few more steps, and record nothing after that; the run goes
        on. `reason` is told by `kvrewind info`; the first one counts. From any thread, observers
        included.
        """
        self._freeze_reason = self._freeze_reason or reason

    @property
    def is_recording(self) -> bool:
        """False once recording failed, or was frozen and came to its end."""
        return self.failure is None and not self._is_stopped

    @property
    def queued_events(self) -> int:
        """Events that wait to be stored."""
        return self._handover.depth

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the writer of {self.path} is closed")

    def _begin(self, step: int, when_full: WhenFull | None = None) -> None:
        """If that is a later step, the open one is closed and goes to the background thread."""
        if self._open and step > self._open_step:
            closed = self._close_step()
            if not self._handover.put(closed, when_full):
                self._drop(closed, step)
            elif self._handover.steps > _STEPS_BEHIND:
                time.sleep(0)  # an engine that computes in Python never lets the thread at the lock
        self._open_step = max(self._open_step, step)

    def _append(self, envelope: Envelope) -> None:
        self._next_seq = envelope.seq + 1
        self._open.append(envelope)
        self.events += 1

    def _close_step(self) -> ClosedStep:
        closed = ClosedStep(self._open_step, self._open)
        self._open = []
        return closed

    def _drop(self, closed: ClosedStep, next_step: int) -> None:
        """The next step begins with the mark. If it is dropped too, its mark covers both."""
        first = closed.envelopes[0]
        start, lost = first.seq, len(closed.envelopes)
        if isinstance(first.event, SpanDropped) and first.event.why == _DROPPED:
            start, lost = first.event.first_seq, lost - 1
        self.dropped += lost
        self.events -= lost
        t_ns = time.perf_counter_ns() - self._start_ns
        mark = SpanDropped(first_seq=start, count=self._next_seq - start, why=_DROPPED)
        self._open.append(Envelope(self._next_seq, next_step, t_ns, 0, mark))
        self._next_seq += 1

    def close(self) -> None:
        """Commit what is left and, if the run ended, mark the trace complete.

        May be called again, as after an interruption while it waited.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._open:
                    self._handover.put(self._close_step(), "block")
                self._handover.end()
        self._thread.join()
        self._store.close()

    # --- the background thread --------------------------------------------------------------------

    def _record(self) -> None:
        try:
            self._record_all()
            self._finish()
        except Exception as error:  # whatever it is, the run must go on; it is told in `failure`
            self.failure = RecordingFailed(
                str(self.path), self._store.why(error), self._store.remedy
            )
            self._handover.abandon()
        self.busy_s = time.thread_time()

    def _record_all(self) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            if batch:
                self._commit(batch)
                self._observe(batch)
                self._follow_ring(batch)
                more = self._settle() and more
            self.busy_s = time.thread_time()

    def _next_batch(self) -> tuple[list[ClosedStep], bool]:
        """Waits for a step, then takes what else comes soon; False when it was the last."""
        item = self._handover.take()
        if item is not None:
            self._handover.gather(_GATHER_S)
        batch: list[ClosedStep] = []
        size = 0
        while item is not None:
            batch.append(item)
            size += len(item.envelopes)
            if size >= _EVENTS_PER_COMMIT or self._is_enough(batch):
                return batch, True
            item = self._handover.take_now()
        return batch, bool(batch)

    def _is_enough(self, batch: list[ClosedStep]) -> bool:
        """Whether something must happen behind these steps before others are stored."""
        if self._stop_after is not None:
            return self.steps + len(batch) >= self._stop_after
        return self._ring is not None and len(batch) >= self._ring.steps_at_once

    def _follow_ring(self, batch: list[ClosedStep]) -> None:
        """A frozen ring grows at its end, and loses nothing any more."""
        if self._ring is None:
            return
        for step in batch:
            self._ring.follow(step.envelopes)
        if self._freeze_reason is not None:
            return
        if self._ring.is_keyframe_due(self._store):
            self._encoder.restart()
            self._ring.lay_keyframe(self._encoder.next_name)
        if self._ring.trim(self._store):
            self._store.commit()

    def _settle(self) -> bool:
        """What is to be done between two commits; False when recording is to stop."""
        if self._freeze_reason is not None and self.frozen is None and self._last is not None:
            self.frozen = Frozen(self._freeze_reason, self._last.step, self._last.last_seq)
            self._store.add(schema.header, [("frozen", json.dumps(self.frozen._asdict()))])
            self._store.commit()
            self._stop_after = self.steps + STEPS_AFTER_FREEZE
        if self._stop_after is None or self.steps < self._stop_after:
            return True
        self._is_stopped = True
        self._handover.abandon()
        return False

    def _commit(self, batch: list[ClosedStep]) -> None:
        encoded = [self._encoder.encode(step.step, step.envelopes) for step in batch]
        for table, rows in rows_of(encoded):
            self._store.add(table, rows)
        self._store.commit()
        self._last = encoded[-1].digest
        self._committed_events += sum(len(step.events) for step in encoded)
        self.steps += len(encoded)
        for step in batch:
            self._ends.see(step.envelopes)

    def _observe(self, batch: list[ClosedStep]) -> None:
        for step in batch:
            for observer in tuple(self.observers):
                try:
                    observer(step.envelopes)
                except Exception as error:  # a failing check must not end the recording
                    self.observer_failures.append(error)
                    self.observers.remove(observer)

    def _finish(self) -> None:
        self._store.add(schema.postings, [tuple(row) for row in self._encoder.finish()])
        if self._ends.is_complete and self._last is not None:
            end = {
                "events": self._ring.events_in_store if self._ring else self._committed_events,
                "last_seq": self._last.last_seq,
                "last_step": self._last.step,
                "digest": self._last.digest.hex(),
                "float_digest": self._last.float_digest.hex(),
            }
            self._store.add(schema.header, [("complete", json.dumps(end))])
        self._store.commit()
        self._store.finish()
