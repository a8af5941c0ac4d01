"""A step on its way: sent to the device, and not yet accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from .inputs import BlockMove, StepInputs
from .layout import DeviceRow
from .request import Request
from .rows import Row
from .runner import BlockMemory, Runner, StepOutput


@dataclass(slots=True, eq=False)
class Flight:
    """The rows of a step, what the device is given, and what comes of it."""

    rows: tuple[Row, ...]
    device_rows: tuple[DeviceRow, ...]
    """The same as the device has them, pads included."""
    inputs: StepInputs
    result: Future[StepOutput] | None = None
    """None until the device has started."""
    retiring: list[Request] = field(default_factory=list)
    """Requests that ended meanwhile, and whose blocks are released once this step is done."""

    @property
    def step(self) -> int:
        return self.inputs.step

    @property
    def echo(self) -> list[str | int] | None:
        """What the device says it has read."""
        buffer = self.inputs.buffer
        return [buffer.buffer, buffer.stamp] if buffer else None

    def row_at(self, number: int) -> Row:
        """The row that the device has as its `number`-th."""
        row = self.device_rows[number]
        assert isinstance(row, Row), "a pad chooses no token"
        return row

    def has_row_of(self, request: Request) -> bool:
        return any(row.request is request for row in self.rows)


class Device(Protocol):
    """Where steps are computed, one after the other."""

    @property
    def memory(self) -> BlockMemory:
        """The runner's, in turn with the steps: what is asked of it comes after those sent."""
        ...

    def start(self, inputs: StepInputs) -> Future[StepOutput]: ...


class InlineDevice:
    """Computes a step before it returns."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.memory = runner.memory

    def start(self, inputs: StepInputs) -> Future[StepOutput]:
        future: Future[StepOutput] = Future()
        try:
            future.set_result(self._runner.execute(inputs))
        except Exception as error:  # told to whoever asks for the result, as a thread's is
            future.set_exception(error)
        return future


class ThreadedDevice:
    """Computes steps on a thread of its own, while the next one is scheduled."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvrewind-device")
        self.memory = InTurn(runner.memory, self._thread)

    def start(self, inputs: StepInputs) -> Future[StepOutput]:
        return self._thread.submit(self._runner.execute, inputs)


class InTurn:
    """Implements `BlockMemory` on the thread that computes the steps: a load must not overtake a
    step that scrubs the block first."""

    def __init__(self, memory: BlockMemory, thread: ThreadPoolExecutor) -> None:
        self._memory = memory
        self._thread = thread

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._thread.submit(self._memory.move, moves).result()

    def digest(self, block: int, group: int) -> str:
        return self._thread.submit(self._memory.digest, block, group).result()

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int], group: int) -> None:
        self._thread.submit(self._memory.store, blocks, host_blocks, group).result()

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int], group: int) -> None:
        self._thread.submit(self._memory.load, host_blocks, blocks, group).result()


def device_for(runner: Runner, steps_in_flight: int) -> Device:
    return InlineDevice(runner) if steps_in_flight == 1 else ThreadedDevice(runner)
