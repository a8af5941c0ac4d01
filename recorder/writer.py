"""Writes a trace while the run goes on.

`emit` gives an event its seq and time and appends it to the open step; when a later step begins,
the whole step goes to a background thread, which encodes, digests and inserts it, and commits
whole steps only. A recorder must never change a run: what goes wrong in the thread ends the
recording and is kept in `failure`.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from . import schema
from .codec import Encoder
from .digest import DigestChain, StepDigest
from .errors import BadInput, RecordingFailed
from .events import Envelope, Event, RunEnded
from .stores.sqlite_file import SqliteFile

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


class _Step(NamedTuple):
    step: int
    envelopes: list[Envelope]


class TraceWriter:
    """A sink that records into a new `*.kvtrace` file.

    Raises OutputExists if `path` exists and `force` is not given, BadOutput if it can't be
    created. Use it as a context manager, or call `close`. A trace is complete once a `RunEnded`
    was recorded and the writer closed.
    """

    def __init__(
        self, path: Path | str, *, force: bool = False, observers: Iterable[Observer] = ()
    ) -> None:
        self.path = Path(path)
        self.observers: list[Observer] = list(observers)
        self.failure: RecordingFailed | None = None
        """Why recording stopped early, if it did."""
        self.observer_failures: list[Exception] = []
        """What observers raised; one that raises is not called again."""
        self.events = 0
        """Events accepted."""
        self.steps = 0
        """Steps committed."""
        self.emit_s = 0.0
        """Seconds that the emitting threads spent in `emit`."""
        self.busy_s = 0.0
        """Seconds of processor time that the background thread used."""

        self._store = SqliteFile(self.path, force=force)
        self._start_ns = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._open: list[Envelope] = []
        self._open_step = 0
        self._next_seq = 0
        self._closed = False
        self._closing = threading.Event()
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._chain = DigestChain()
        self._encoder = Encoder()
        self._last: StepDigest | None = None
        self._committed_events = 0
        self._saw_end = False
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
            t_ns = time.perf_counter_ns() - self._start_ns
            self._accept(Envelope(self._next_seq, step, t_ns, 0, event))
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
                self._accept(envelope)
            if self.failure is not None:
                return

    def _accept(self, envelope: Envelope) -> None:
        if self._closed:
            raise RuntimeError(f"the writer of {self.path} is closed")
        self._next_seq = envelope.seq + 1
        if self.failure is not None:
            return
        if self._open and envelope.step > self._open_step:
            self._hand_over()
        self._open_step = max(self._open_step, envelope.step)
        self._open.append(envelope)
        self.events += 1

    def _hand_over(self) -> None:
        self._steps.put(_Step(self._open_step, self._open))
        self._open = []
        if self._steps.qsize() > _STEPS_BEHIND:
            time.sleep(0)  # an engine that computes in Python never lets the thread at the lock

    def close(self) -> None:
        """Commit what is left and, if the run ended, mark the trace complete.

        May be called again, as after an interruption while it waited.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._open:
                    self._hand_over()
                self._steps.put(None)
                self._closing.set()
        self._thread.join()
        self._store.close()

    # --- the background thread --------------------------------------------------------------------

    def _record(self) -> None:
        try:
            self._record_all()
            self._finish()
        except Exception as error:  # whatever it is, the run must go on; it is told in `failure`
            self.failure = RecordingFailed(self._store.name, self._store.why(error))
        self.busy_s = time.thread_time()

    def _record_all(self) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            if batch:
                self._commit(batch)
                self._observe(batch)
            self.busy_s = time.thread_time()

    def _next_batch(self) -> tuple[list[_Step], bool]:
        """Waits for a step, then takes what else comes soon; False when it was the last."""
        item = self._steps.get()
        if item is not None:
            self._closing.wait(_GATHER_S)
        batch: list[_Step] = []
        size = 0
        while item is not None:
            batch.append(item)
            size += len(item.envelopes)
            if size >= _EVENTS_PER_COMMIT or self._steps.empty():
                return batch, True
            item = self._steps.get()
        return batch, False

    def _commit(self, batch: list[_Step]) -> None:
        rows: list[tuple[Any, ...]] = []
        digests = [self._encode(step, rows) for step in batch]
        self._store.add(schema.events, rows)
        self._store.add(schema.steps, [tuple(digest) for digest in digests])
        self._store.commit()
        self._last = digests[-1]
        self._committed_events += len(rows)
        self.steps += len(digests)

    def _encode(self, step: _Step, rows: list[tuple[Any, ...]]) -> StepDigest:
        encoded_events, encode = [], self._encoder.encode
        for seq, own_step, t_ns, rank, event in step.envelopes:
            kind = type(event).__name__
            encoded = encode(event)
            encoded_events.append((own_step, kind, encoded))
            rows.append(
                (seq, own_step, t_ns, rank, kind, encoded.request, encoded.block, encoded.payload)
            )
            self._saw_end = self._saw_end or type(event) is RunEnded
        return self._chain.close_step(step.step, step.envelopes[-1].seq, encoded_events)

    def _observe(self, batch: list[_Step]) -> None:
        for step in batch:
            for observer in tuple(self.observers):
                try:
                    observer(step.envelopes)
                except Exception as error:  # a failing check must not end the recording
                    self.observer_failures.append(error)
                    self.observers.remove(observer)

    def _finish(self) -> None:
        if self._saw_end and self._last is not None:
            end = {
                "events": self._committed_events,
                "last_seq": self._last.last_seq,
                "last_step": self._last.step,
                "digest": self._last.digest.hex(),
                "float_digest": self._last.float_digest.hex(),
            }
            self._store.add(schema.header, [("complete", json.dumps(end))])
            self._store.commit()
        self._store.finish()
