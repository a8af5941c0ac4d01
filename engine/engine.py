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
    PiecesDefined,
    RequestAdded,
    RunEnded,
    RunStarted,
    StepCompleted,
    StepDispatched,
    TokensSampled,
)
from ..recorder.sink import Sink
from .admission import refuse_impossible
from .block_pool import BlockPool
from .builder import InputBuilder
from .config import EngineConfig
from .decisions import Policy, Reference
from .journal import Journal
from .request import Prompt, Request, Status
from .runner import Runner, StepOutput
from .scheduler import Row, Scheduler

ENGINE_VERSION = "1"
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
    run and its tokens; without a header one is made from the runner's card.
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
    ) -> None:
        self.config = config
        self.runner = runner
        self.journal = Journal(sink, policy or Reference())
        self.pool = BlockPool(config.num_blocks, self.journal)
        self.scheduler = Scheduler(config, self.pool, self.journal)
        self.requests: dict[str, Request] = {}
        self._builder = InputBuilder(config, self.journal)
        self._arrivals: list[Prompt] = []
        self._aborts: list[tuple[int, str]] = []
        self._pieces = pieces
        self._defined: set[int] = set()
        self.journal.emit(header or run_header(config, runner))

    @property
    def step_number(self) -> int:
        return self.journal.step

    def add(self, prompts: Sequence[Prompt]) -> None:
        """Hand in requests; each is taken in at its `arrival_step`, in the order given.

        Raises `PromptRefused` for one that could never run, before anything is taken in.
        """
        waiting = (*self._arrivals, *prompts)
        refuse_impossible(waiting, self.config, self.runner.card, known=self.requests)
        self._arrivals.extend(prompts)
        self._aborts.extend((p.abort_step, p.request) for p in prompts if p.abort_step is not None)

    def run(self, max_steps: int | None = None, on_step: Callable[[], None] = lambda: None) -> None:
        """Step until nothing is left, then end the run. Raises `DidNotFinish`."""
        idle = 0
        while self.has_work:
            if max_steps is not None and self.step_number >= max_steps:
                self._give_up("work was left")
            self._skip_idle_steps()
            idle = 0 if self.step() or self._arrivals else idle + 1
            if idle > 1:  # one idle step may follow a preemption
                self._give_up("nothing could run any more")
            on_step()
        self.journal.emit(RunEnded(reason="completed"))

    def _skip_idle_steps(self) -> None:
        """With nobody at work, the next step that does anything is the next arrival's."""
        if self._arrivals and not self.scheduler.has_work:
            next_arrival = min(prompt.arrival_step for prompt in self._arrivals)
            self.journal.step = max(self.journal.step, next_arrival - 1)

    def _give_up(self, why: str) -> NoReturn:
        self.journal.emit(RunEnded(reason="did-not-finish"))
        raise DidNotFinish(self.step_number, why)

    @property
    def num_finished(self) -> int:
        return sum(r.status is Status.FINISHED for r in self.requests.values())

    @property
    def has_work(self) -> bool:
        return bool(self._arrivals) or self.scheduler.has_work

    def step(self) -> bool:
        """One scheduler step; False for one without rows, which only takes inputs in."""
        self.journal.step += 1
        self._take_inputs()
        rows = self.scheduler.schedule()
        if not rows:
            return False
        output = self._execute(rows)
        self._account(rows, output)
        return True

    def _execute(self, rows: tuple[Row, ...]) -> StepOutput:
        inputs = self._builder.build(rows)
        self.journal.emit(inputs.built())
        self.journal.emit(inputs.mask_built())
        self.journal.emit(StepDispatched())
        output = self.runner.execute(inputs)
        for written in inputs.written():
            self.journal.emit(written)
        self.journal.emit(StepCompleted())
        return output

    def _account(self, rows: tuple[Row, ...], output: StepOutput) -> None:
        for row in rows:
            row.request.computed = row.seq_len
        self._append(rows, output)
        for row in rows:
            self.scheduler.publish(row)
        for row in rows:
            reason = self._finish_reason(row.request)
            if reason is not None:
                self.scheduler.finish(row.request, reason)

    def _append(self, rows: tuple[Row, ...], output: StepOutput) -> None:
        positions = tuple(len(row.request.tokens) for row in rows)
        for row, token in zip(rows, output.tokens, strict=True):
            row.request.tokens.append(token)
        self.journal.emit(
            TokensSampled(
                requests=tuple(row.request.name for row in rows),
                tokens=output.tokens,
                positions=positions,
                rows=tuple(range(len(rows))),
                logprobs=output.logprobs,
                margins=output.margins,
            )
        )
        self._define_pieces(output.tokens)

    def _finish_reason(self, request: Request):
        prompt = request.prompt
        if request.tokens[-1] in self.runner.card.eos_tokens and not prompt.ignore_eos:
            return "eos"
        return "length" if request.num_sampled >= prompt.max_new_tokens else None

    def _take_inputs(self) -> None:
        due = [p for p in self._arrivals if p.arrival_step <= self.step_number]
        self._arrivals = [p for p in self._arrivals if p.arrival_step > self.step_number]
        for prompt in due:
            self._take_in(prompt)
        for step, name in tuple(self._aborts):
            if step <= self.step_number and name in self.requests:
                self._aborts.remove((step, name))
                self._abort(name)

    def _take_in(self, prompt: Prompt) -> None:
        request = Request.of(prompt)
        self.requests[prompt.request] = request
        self.journal.emit(
            RequestAdded(
                request=prompt.request,
                prompt_tokens=prompt.prompt_tokens,
                max_new_tokens=prompt.max_new_tokens,
                tenant=prompt.tenant,
                session=prompt.session,
                external_id=prompt.external_id,
                sampling=prompt.sampling,
                passphrase=prompt.passphrase,
            )
        )
        self._define_pieces(prompt.prompt_tokens)
        self.runner.begin(request)
        self.scheduler.add(request)

    def _abort(self, name: str) -> None:
        self.journal.emit(AbortRequested(request=name))
        request = self.requests[name]
        if request in self.scheduler.running or request in self.scheduler.waiting:
            self.scheduler.finish(request, "aborted")

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
