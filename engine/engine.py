"""The loop: take inputs in, schedule, build, execute, account.

    arrivals -> scheduler -> builder -> runner -> tokens
                   |            |         |
                   +------ journal -------+--> events

The engine never opens a file; whoever wants its events passes a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ..recorder.events import AbortRequested, RequestAdded, RunEnded, RunStarted
from ..recorder.sink import Sink
from .accounting import Accountant
from .admission import UnknownRequest, refuse_impossible, sample_names
from .arrivals import Arrivals
from .block_digests import BlockDigests
from .block_pool import BlockPool
from .clock import Clock, StepWork
from .config import EngineConfig
from .decisions import Policy, Reference
from .epochs import EpochChange
from .flight import device_for
from .header import run_header
from .journal import Journal
from .pieces import Pieces
from .pipeline import Pipeline
from .pool_rules import PoolRules
from .request import Prompt, Request, Status, further_samples
from .rows import Row
from .runner import KVGroup, Runner
from .scheduler import Scheduler


class DidNotFinish(Exception):
    """Work was left when the step limit was reached, or nothing could run any more.

    Faulty runs can livelock, or lose the blocks that a waiting request needs.
    """

    def __init__(self, steps: int, why: str) -> None:
        super().__init__(f"the run did not finish: {why} after {steps} steps")
        self.steps = steps


class Engine:
    """A paged-cache inference engine that tells a sink every decision it makes.

    `header` (a recorded `RunStarted`) and `pieces` (token -> text) are what the trace says of the
    run and its tokens; without a header one is made from the runner's card. A `clock` is needed
    where prompts arrive in seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        sink: Sink,
        *,
        policy: Policy | None = None,
        pieces: Callable[[int], str] | None = None,
        header: RunStarted | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.runner = runner
        self.journal = Journal(sink, policy or Reference())
        self.requests: dict[str, Request] = {}
        groups = tuple(KVGroup.of(group) for group in runner.card.groups)
        self.pools = tuple(
            BlockPool(config.num_blocks, self.journal, number, PoolRules.of(config))
            for number in range(len(groups))
        )
        device = device_for(runner, config.steps_in_flight)
        self.scheduler = Scheduler(
            config,
            self.pools,
            groups,
            self.journal,
            device.memory,
            runner.card.paragraph_tokens,
        )
        self._digests = (
            BlockDigests(self.journal, self.pools, device.memory) if config.digests else None
        )
        self._pipeline = Pipeline(config, self.journal, groups, device)
        self._pieces = Pieces(self.journal, pieces)
        self._accountant = Accountant(
            self.journal,
            self.scheduler,
            self._pipeline,
            self.requests,
            runner.card.eos_tokens,
            self._pieces,
        )
        self._arrivals = Arrivals(clock)
        self._aborts: list[tuple[int, str]] = []
        self._epochs: list[EpochChange] = []
        self._clock = clock
        self._idle = 0
        """Steps in a row in which nothing could run."""
        if self.journal.listening:
            self.journal.emit(header or run_header(config, runner))

    @property
    def step_number(self) -> int:
        return self.journal.step

    def add(self, prompts: Sequence[Prompt]) -> None:
        """Hand in requests; each is taken in at its `arrival_step`, or when the clock has reached
        its `arrival_s`, in the order given.

        Raises `PromptRefused` for one that could never run, before anything is taken in.
        """
        waiting = (*self._arrivals, *prompts)
        refuse_impossible(waiting, self.config, self.runner.card, known=self.requests)
        self._arrivals.add(prompts)
        self._aborts.extend((p.abort_step, p.request) for p in prompts if p.abort_step is not None)

    def abort(self, name: str, step: int | None = None) -> None:
        """Ask for the end of a request, in the next step or in a later one; nothing happens to
        one that has ended. Raises `UnknownRequest`."""
        request = self.requests.get(name)
        if request is None and name not in self.names:
            raise UnknownRequest(name)
        if request is None or request.status is not Status.FINISHED:
            self._aborts.append((self.step_number + 1 if step is None else step, name))

    def change_epoch(self, change: EpochChange) -> None:
        """Say that weights, an adapter or the pool's memory are loaded anew at `change.step`."""
        self._epochs.append(change)

    def run(self, max_steps: int | None = None, on_step: Callable[[], None] = lambda: None) -> None:
        """Step until nothing is left, then end the run. Raises `DidNotFinish`."""
        while self.has_work:
            if max_steps is not None and self.step_number >= max_steps:
                self._give_up("work was left")
            self.advance()
            on_step()
        self.end()

    def advance(self) -> None:
        """The next step that does anything. Raises `DidNotFinish` when none can any more."""
        self._skip_idle_steps()
        moved = self.step() or bool(self._arrivals) or not self.has_work
        self._idle = 0 if moved else self._idle + 1
        if self._idle > 1:  # one idle step may follow a preemption
            self._give_up("nothing could run any more")

    def end(self) -> None:
        """Nothing comes any more."""
        if self.journal.listening:
            self.journal.emit(RunEnded(reason="completed"))

    def _skip_idle_steps(self) -> None:
        """With nobody at work, the next step that does anything is the next arrival's."""
        if not self._arrivals or self._is_busy or self.scheduler.has_work:
            return
        self.journal.step = self._arrivals.idle_until_next(self.journal.step)

    def _give_up(self, why: str) -> NoReturn:
        if self.journal.listening:
            self.journal.emit(RunEnded(reason="did-not-finish"))
        raise DidNotFinish(self.step_number, why)

    @property
    def names(self) -> set[str]:
        """Of all requests that were handed in, their further samples included."""
        arrivals = (n for p in self._arrivals for n in (p.request, *sample_names(p)))
        return {*self.requests, *arrivals}

    @property
    def num_finished(self) -> int:
        return self._accountant.num_finished

    @property
    def has_work(self) -> bool:
        return bool(self._arrivals) or self._is_busy or self.scheduler.has_work

    def step(self) -> bool:
        """One scheduler step; False for one without rows, which only takes inputs in.

        With two steps in flight the step before is completed once this one is sent.
        """
        self.journal.step += 1
        was_busy = self._is_busy
        self._take_inputs()
        self._accountant.finish_transfers()
        if len(self._pipeline) and self.scheduler.might_preempt():
            self._complete()  # nobody is preempted while the device uses their blocks
        rows = self.scheduler.schedule(self._pipeline.rows)
        if rows:
            self._pipeline.send(rows, self.scheduler.take_moves())
        while self._pipeline.is_full or (len(self._pipeline) and not rows):
            self._complete()
        self._pipeline.start_next()
        self.scheduler.host.start_stores(spare=len(self.scheduler.running))
        if not rows and not was_busy:
            self._tell_clock(())
        return bool(rows) or was_busy or self._is_busy

    @property
    def _is_busy(self) -> bool:
        """Whether a step or a transfer is under way."""
        return len(self._pipeline) > 0 or self.scheduler.host.is_busy

    def _complete(self) -> None:
        """Wait for the oldest step in flight, and account for it."""
        flight = self._pipeline.complete()
        self._tell_clock(flight.rows)
        self._accountant.settle(flight)
        if self._digests is not None:
            self._digests.sweep()

    def _tell_clock(self, rows: Sequence[Row]) -> None:
        if self._clock is not None:
            self._clock.step_done(StepWork.of(rows))

    def _take_inputs(self) -> None:
        for change in [c for c in self._epochs if c.step <= self.step_number]:
            self._epochs.remove(change)
            self._take_epoch(change)
        for prompt in self._arrivals.take_due(self.step_number):
            self._take_in(prompt)
        self._take_aborts()

    def _take_epoch(self, change: EpochChange) -> None:
        """Nothing computes or moves while what it is computed with is replaced."""
        while len(self._pipeline):
            self._complete()
        self._accountant.finish_transfers(wait=True)
        self.scheduler.change_epoch(change)

    def _take_aborts(self) -> None:
        """One for each request, in the order of their arrival, so that it doesn't matter in which
        they were asked for."""
        due = {n for step, n in self._aborts if step <= self.step_number and n in self.requests}
        self._aborts = [(step, n) for step, n in self._aborts if n not in due]
        for name in sorted(due, key=lambda name: self.requests[name].arrival):
            self._abort(name)

    def _take_in(self, prompt: Prompt) -> None:
        """The request, and one more for each further sample of its prompt."""
        request = self._added(prompt, parent=None)
        self._pieces.define(prompt.prompt_tokens)
        for child in further_samples(prompt):
            request.children.append(self._added(child, parent=prompt.request))
        self.scheduler.add(request)

    def _added(self, prompt: Prompt, parent: str | None) -> Request:
        request = Request.of(prompt, arrival=len(self.requests), groups=len(self.pools))
        self.requests[prompt.request] = request
        if self.journal.listening:
            self.journal.emit(
                RequestAdded(
                    request=prompt.request,
                    prompt_tokens=prompt.prompt_tokens,
                    max_new_tokens=prompt.max_new_tokens,
                    tenant=prompt.tenant,
                    session=prompt.session,
                    adapter=prompt.adapter,
                    priority=prompt.priority or None,
                    parent=parent,
                    external_id=prompt.external_id,
                    extra_keys=[list(pair) for pair in prompt.extra_keys] or None,
                    sampling=prompt.sampling,
                    passphrase=prompt.passphrase,
                )
            )
        self.runner.begin(request)
        return request

    def _abort(self, name: str) -> None:
        if self.journal.listening:
            self.journal.emit(AbortRequested(request=name))
        request = self.requests[name]
        if request.status is not Status.FINISHED:
            self._accountant.finish(request, "aborted")
