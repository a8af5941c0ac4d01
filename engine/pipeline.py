"""The way of a step to the device and back.

With two steps in flight the next one is sent before this one has completed:

    Scheduled 1  Built 1  Dispatched 1  Written 1
    Scheduled 2  Built 2  Dispatched 2 | Completed 1  Sampled 1 ... | Written 2
    Scheduled 3  Built 3  Dispatched 3 | Completed 2  Sampled 2 ... | Written 3

The device starts with a step when the one before is done; only then are all of its tokens known.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..recorder.events import StepCompleted, StepDispatched
from .buffers import DecodeBuffers, is_capturable
from .builder import InputBuilder, tokens_of
from .config import EngineConfig
from .flight import Device, Flight
from .inputs import BlockMove, StepInputs
from .journal import Journal
from .request import Request
from .rows import Row
from .runner import KVGroup


class Pipeline:
    """Builds steps, sends them, and gives them back in their order."""

    def __init__(
        self, config: EngineConfig, journal: Journal, groups: Sequence[KVGroup], device: Device
    ) -> None:
        self._persistent = config.persistent_buffers
        self._depth = config.steps_in_flight
        self._journal = journal
        self._device = device
        self._builder = InputBuilder(config, journal, groups)
        self._buffers = DecodeBuffers(journal, config.steps_in_flight)
        self._flights: list[Flight] = []

    def __len__(self) -> int:
        """Steps in flight."""
        return len(self._flights)

    @property
    def is_full(self) -> bool:
        return len(self._flights) >= self._depth

    @property
    def rows(self) -> list[Row]:
        """Of all steps in flight."""
        return [row for flight in self._flights for row in flight.rows]

    def using(self, request: Request) -> list[Flight]:
        """The steps in flight that use its blocks."""
        return [flight for flight in self._flights if flight.has_row_of(request)]

    def forks_of(self, parents: Sequence[Request]) -> list[Request]:
        """Samples that a step in flight takes off from them: they hold what their parents do."""
        rows = (row for row in self.rows if row.request in parents)
        return [fork for row in rows for fork in row.forks]

    def send(self, rows: tuple[Row, ...], moves: tuple[BlockMove, ...]) -> None:
        """Build the step and hand it over."""
        device_rows = self._builder.lay_out(rows)
        inputs = self._builder.build(device_rows, moves)
        if self._persistent and is_capturable(rows):
            inputs = self._buffers.stage(inputs, rows[0], self._buffers_in_use())
        if self._journal.listening:
            self._tell_built(inputs, tokens_known=not any(row.request.pending for row in rows))
        if inputs.buffer:
            inputs = self._buffers.replay(inputs, rows[0])
        for row in rows:
            row.request.computed = row.seq_len
            for request in row.takers:
                request.pending += 1
        self._flights.append(Flight(rows, device_rows, inputs))
        self.start_next()

    def _tell_built(self, inputs: StepInputs, *, tokens_known: bool) -> None:
        for built in inputs.built(tokens_known=tokens_known):
            self._journal.emit(built)
        for mask in inputs.masks_built():
            self._journal.emit(mask)
        self._journal.emit(StepDispatched())

    def start_next(self) -> None:
        """The device begins with the oldest step, unless it has."""
        if not self._flights or self._flights[0].result is not None:
            return
        flight = self._flights[0]
        if self._depth > 1:  # else they were when it was built
            flight.inputs.fill_in(tokens_of(flight.device_rows))
        flight.result = self._device.start(flight.inputs)
        if self._journal.listening:
            for written in flight.inputs.written():
                self._journal.emit_for(flight.step, written)

    def complete(self) -> Flight:
        """Wait for the oldest step. Its `result` is there, or the error that it raised."""
        flight = self._flights.pop(0)
        assert flight.result is not None, "steps start in order"
        flight.result.exception()
        if self._journal.listening:
            self._journal.emit_for(flight.step, StepCompleted(read=flight.echo))
        for row in flight.rows:
            for request in row.takers:
                request.pending -= 1
        return flight

    def _buffers_in_use(self) -> tuple[str, ...]:
        return tuple(f.inputs.buffer.buffer for f in self._flights if f.inputs.buffer)
