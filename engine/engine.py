"""The loop: take inputs in, schedule, build, execute, account.

    arrivals -> scheduler -> builder -> runner -> tokens
                   |            |         |
                   +------ journal -------+--> events

The engine never opens a file; whoever wants its events passes a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from ..recorder.events import (
    AbortRequested,
    DraftVerified,
    PiecesDefined,
    RequestAdded,
    RunEnded,
    RunStarted,
    StepCompleted,
    StepDispatched,
    TokensSampled,
)
from ..recorder.sink import Sink
from .admission import UnknownRequest, refuse_impossible, sample_names
from .arrivals import Arrivals
from .block_pool import BlockPool, PoolRules
from .buffers import DecodeBuffers, is_capturable
from .builder import InputBuilder, tokens_of
from .clock import Clock, StepWork
from .config import EngineConfig
from .decisions import Policy, Reference, Retire, Rollback
from .flight import Flight, device_for
from .journal import Journal
from .outcome import Chosen, chosen_by_row, verify
from .request import Prompt, Request, Status, further_samples
from .rows import Row
from .runner import KVGroup, Runner, StepOutput
from .scheduler import FinishReason, Scheduler

ENGINE_VERSION = "2"
"""Of the engine's behaviour, not of the package: what `RunStarted.engine_version` says."""


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
        groups = tuple(KVGroup.of(group) for group in runner.card.groups)
        self.pools = tuple(
            BlockPool(config.num_blocks, self.journal, number, PoolRules.of(config))
            for number in range(len(groups))
        )
        self._device = device_for(runner, config.steps_in_flight)
        self.scheduler = Scheduler(
            config,
            self.pools,
            groups,
            self.journal,
            self._device.memory,
            runner.card.paragraph_tokens,
        )
        self.requests: dict[str, Request] = {}
        self._builder = InputBuilder(config, self.journal, groups)
        self._buffers = DecodeBuffers(self.journal, config.steps_in_flight)
        self._flights: list[Flight] = []
        self._retiring: list[Request] = []
        """Ended while host memory was loaded for them."""
        self._arrivals = Arrivals(clock)
        self._aborts: list[tuple[int, str]] = []
        self._clock = clock
        self._idle = 0
        """Steps in a row in which nothing could run."""
        self._pieces = pieces
        self._defined: set[int] = set()
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
        self.journal.emit(RunEnded(reason="completed"))

    def _skip_idle_steps(self) -> None:
        """With nobody at work, the next step that does anything is the next arrival's."""
        if not self._arrivals or self._flights or self.scheduler.has_work:
            return
        self.journal.step = self._arrivals.idle_until_next(self.journal.step)

    def _give_up(self, why: str) -> NoReturn:
        self.journal.emit(RunEnded(reason="did-not-finish"))
        raise DidNotFinish(self.step_number, why)

    @property
    def names(self) -> set[str]:
        """Of all requests that were handed in, their further samples included."""
        arrivals = (n for p in self._arrivals for n in (p.request, *sample_names(p)))
        return {*self.requests, *arrivals}

    @property
    def num_finished(self) -> int:
        return sum(r.status is Status.FINISHED for r in self.requests.values())

    @property
    def has_work(self) -> bool:
        under_way = self._arrivals or self._flights or self.scheduler.host.is_busy
        return bool(under_way) or self.scheduler.has_work

    def step(self) -> bool:
        """One scheduler step; False for one without rows, which only takes inputs in.

        With two steps in flight the step before is completed once this one is sent.
        """
        self.journal.step += 1
        self._take_inputs()
        is_moving = self.scheduler.host.is_busy
        self._finish_transfers()
        if self._flights and self.scheduler.might_preempt():
            self._complete()  # nobody is preempted while the device uses their blocks
        before = len(self._flights)
        rows = self.scheduler.schedule([row for flight in self._flights for row in flight.rows])
        self.scheduler.host.start_stores(spare=len(self.scheduler.running))
        if rows:
            self._send(rows)
        while len(self._flights) >= self.config.steps_in_flight or (self._flights and not rows):
            self._complete()
        self._start_next()
        if not rows and not before:
            self._tell_clock(())
        return bool(rows) or before > 0 or is_moving or self.scheduler.host.is_busy

    def _finish_transfers(self) -> None:
        host = self.scheduler.host
        host.finish_due()
        for request in [r for r in self._retiring if not host.under_way(r)]:
            self._retiring.remove(request)
            self.scheduler.release(request)

    def _tell_clock(self, rows: Sequence[Row]) -> None:
        if self._clock is not None:
            self._clock.step_done(StepWork.of(rows))

    def _send(self, rows: tuple[Row, ...]) -> None:
        """Build the step and hand it over; it starts when the one before it is done."""
        device_rows = self._builder.lay_out(rows)
        inputs = self._builder.build(device_rows, self.scheduler.take_moves())
        if self.config.persistent_buffers and is_capturable(rows):
            inputs = self._buffers.stage(inputs, rows[0], self._buffers_in_use())
        tokens_known = not any(row.request.pending for row in rows)
        for built in inputs.built(tokens_known=tokens_known):
            self.journal.emit(built)
        for mask in inputs.masks_built():
            self.journal.emit(mask)
        self.journal.emit(StepDispatched())
        replayed = self._buffers.replay(inputs, rows[0]) if inputs.buffer else None
        for row in rows:
            row.request.computed = row.seq_len
            for request in _takers(row):
                request.pending += 1
        self._flights.append(Flight(rows, device_rows, inputs, replayed))
        self._start_next()

    def _buffers_in_use(self) -> tuple[str, ...]:
        return tuple(flight.replayed.buffer for flight in self._flights if flight.replayed)

    def _start_next(self) -> None:
        """The device begins with the oldest step; by then all of its tokens are known."""
        if not self._flights or self._flights[0].result is not None:
            return
        flight = self._flights[0]
        flight.inputs.fill_in(tokens_of(flight.device_rows))
        flight.result = self._device.start(flight.inputs)
        for written in flight.inputs.written():
            self.journal.emit_for(flight.step, written)

    def _complete(self) -> None:
        """Wait for the oldest step in flight, and account for it."""
        flight = self._flights.pop(0)
        assert flight.result is not None, "steps start in order"
        error = flight.result.exception()
        self._tell_clock(flight.rows)
        self.journal.emit_for(flight.step, StepCompleted(read=flight.echo))
        for row in flight.rows:
            for request in _takers(row):
                request.pending -= 1
        if error is None:
            self._account(flight, flight.result.result())
        else:
            self._fail(flight, error)
        for request in flight.retiring:
            self.scheduler.release(request)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        """The step raised: its requests end, with the reason; the others go on."""
        if not isinstance(error, Exception):
            raise error
        reason = f"step {flight.step} raised {type(error).__name__}: {error}"
        for row in flight.rows:
            for request in (row.request, *row.forks):
                if request.status is not Status.FINISHED:
                    request.error = reason
                    self._finish(request, "error", reason)

    def _account(self, flight: Flight, output: StepOutput) -> None:
        """Tokens are appended, full blocks published, requests that are done finished."""
        live = [row for row in flight.rows if row.request.status is not Status.FINISHED]
        self._append(flight, output)
        for row in live:
            self.scheduler.publish(row, min(row.seq_len, row.request.computed))
        for row in flight.rows:
            for request in (row.request, *row.forks):
                reason = self._finish_reason(request)
                if reason is not None and request.status is not Status.FINISHED:
                    self._finish(request, reason)

    def _append(self, flight: Flight, output: StepOutput) -> None:
        taken: list[Chosen] = []
        for number, chosen in chosen_by_row(flight.inputs.samples, output).items():
            row = flight.row_at(number)
            taken += self._verified(flight.step, row, chosen) if row.drafts else chosen
        taken = [c for c in taken if self._request(c).status is not Status.FINISHED]
        if not taken:
            return
        positions = tuple(self._take(chosen) for chosen in taken)
        tokens = tuple(chosen.token for chosen in taken)
        self.journal.emit_for(
            flight.step,
            TokensSampled(
                requests=tuple(chosen.sample.request for chosen in taken),
                tokens=tokens,
                positions=positions,
                rows=tuple(chosen.sample.row for chosen in taken),
                logprobs=_all_of(chosen.logprob for chosen in taken),
                margins=_all_of(chosen.margin for chosen in taken),
            ),
        )
        self._define_pieces(tokens)

    def _request(self, chosen: Chosen) -> Request:
        return self.requests[chosen.sample.request]

    def _take(self, chosen: Chosen) -> int:
        """The index that the token takes in its request."""
        tokens = self._request(chosen).tokens
        tokens.append(chosen.token)
        return len(tokens) - 1

    def _verified(self, step: int, row: Row, chosen: list[Chosen]) -> tuple[Chosen, ...]:
        """What a row with drafts gives; the request's count goes back behind those rejected."""
        request = row.request
        verified = verify(row, chosen, self.runner.card.eos_tokens)
        self.journal.emit_for(
            step,
            DraftVerified(
                request=request.name,
                proposed=row.drafts,
                first=row.computed + 1,
                accepted=verified.accepted,
            ),
        )
        id = self.journal.id("rollback", request, row.seq_len)
        request.computed = self.journal.decide(
            Rollback(id, row.computed, row.drafts, verified.accepted)
        )
        return verified.taken

    def _finish_reason(self, request: Request) -> FinishReason | None:
        prompt = request.prompt
        if not request.num_sampled:
            return None
        if request.tokens[-1] in self.runner.card.eos_tokens and not prompt.ignore_eos:
            return "eos"
        return "length" if request.num_sampled >= prompt.max_new_tokens else None

    def _finish(self, request: Request, reason: FinishReason, message: str | None = None) -> None:
        """Ends a request; its blocks stay as long as a step or a transfer under way uses them."""
        flights = [flight for flight in self._flights if flight.has_row_of(request)]
        transfers = self.scheduler.host.under_way(request)
        release = True
        if flights or transfers:
            id = self.journal.id("retire", request, 0)
            steps = tuple(flight.step for flight in flights)
            release = self.journal.decide(Retire(id, steps, transfers))
        self.scheduler.finish(request, reason, release=release, message=message)
        if not release:
            (flights[-1].retiring if flights else self._retiring).append(request)

    def _take_inputs(self) -> None:
        for prompt in self._arrivals.take_due(self.step_number):
            self._take_in(prompt)
        self._take_aborts()

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
        self._define_pieces(prompt.prompt_tokens)
        for child in further_samples(prompt):
            request.children.append(self._added(child, parent=prompt.request))
        self.scheduler.add(request)

    def _added(self, prompt: Prompt, parent: str | None) -> Request:
        request = Request.of(prompt, arrival=len(self.requests), groups=len(self.pools))
        self.requests[prompt.request] = request
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
        self.journal.emit(AbortRequested(request=name))
        request = self.requests[name]
        if request.status is not Status.FINISHED:
            self._finish(request, "aborted")

    def _define_pieces(self, tokens: Iterable[int]) -> None:
        """Each token's text, the first time that the token occurs."""
        if self._pieces is None:
            return
        new = [t for t in dict.fromkeys(tokens) if t not in self._defined]
        if new:
            self._defined.update(new)
            self.journal.emit(
                PiecesDefined(tokens=tuple(new), pieces=tuple(self._pieces(t) for t in new))
            )


def _takers(row: Row) -> tuple[Request, ...]:
    """Who gets a token from the row."""
    return (row.request, *row.forks) if row.samples else ()


def _all_of(values: Iterable[float | None]) -> tuple[float, ...] | None:
    known = [value for value in values if value is not None]
    return tuple(known) or None


def run_header(config: EngineConfig, runner: Runner) -> RunStarted:
    card = runner.card
    return RunStarted(
        engine="kvrewind",
        engine_version=ENGINE_VERSION,
        model=card.name,
        model_digest=card.digest,
        tokenizer_digest=card.tokenizer_digest,
        dtype=card.dtype,
        device=card.device,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        groups=card.groups,
        sentinel_blocks=(),
        seed=config.seed,
        wall_clock=datetime.now(UTC).isoformat(timespec="milliseconds"),
        config=config.as_recorded(),
        versions=dict(card.versions),
    )
