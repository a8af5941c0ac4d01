"""`kvrewind record`: a live run into a trace."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.progress import Progress
from rich.table import Table

from ...engine.admission import refuse_impossible
from ...engine.clock import Clock, SimulatedClock, WallClock
from ...engine.config import EngineConfig
from ...engine.engine import DidNotFinish, Engine
from ...engine.faults.registry import fault_named, policy_of, with_implied
from ...engine.garbage import rarely_collected
from ...engine.llm import Model, SymbolicModel, make_engine, open_model
from ...engine.request import Prompt, Request
from ...engine.workloads.spec import PromptSpec
from ...recorder.errors import BadInput
from ...recorder.events import RunEnded
from ...recorder.handover import QUEUE_EVENTS, WhenFull
from ...recorder.reader import TraceReader
from ...recorder.redaction import RedactingSink, Redactor
from ...recorder.stores.address import Place, RunAddress, place_of
from ...replay.online import FindingMade
from ...replay.oracles import foreign_passphrases
from ...replay.policies import Shadow
from ..console import err, out, say
from ..keeping import Keep, remarks
from ..options import Count, MaybeCount, Switches, given, unused_path
from ..outputs import require_output
from ..presenters.listing import kinds_of, listed
from ..redacting import Redact, redactor_of
from ..watching import OnFinding, Watch
from ..workloads import Source

ClockName = Literal["wall", "simulated"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished recording: where it is, what it cost, and the engine as it stands."""

    path: Place
    engine: Engine
    seconds: float
    recording_seconds: float
    events: int
    was_ended: bool = False
    """By a finding."""

    @property
    def recording_share(self) -> float:
        return self.recording_seconds / self.seconds if self.seconds else 0.0


def record(
    *,
    model: str = "canary",
    prompts: Path | None = None,
    scenario: str | None = None,
    poisson: str | None = None,
    first: MaybeCount = None,
    clock: ClockName | None = None,
    max_new_tokens: Count = 32,
    output: Annotated[Path | None, Parameter(name="--out")] = None,
    store: str | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    ring: str | None = None,
    when_full: WhenFull = "block",
    buffer: Count = QUEUE_EVENTS,
    on_finding: Annotated[OnFinding | None, Parameter(show_default=False)] = None,
    metrics: str | None = None,
    redact: Redact | None = None,
    redact_key: Path | None = None,
    show: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    switches: Switches = Switches(),  # noqa: B008  # pyright: ignore[reportInvalidTypeForm]
) -> int:
    """Record a run of the paged-cache engine.

    Without --prompts it runs the default workload: eight customers with a passphrase each, in 22
    blocks, which are a little too few. Exit status 1: a step raised, and its requests failed (the
    trace is whole, and says why); or a finding ended the run (--on-finding raise).

    For example:

        kvrewind record --out clean.kvtrace

        kvrewind record --fault key-length-only --out leak.kvtrace

        kvrewind record --model smollm2 --prompts examples/prompts.jsonl

    Parameters
    ----------
    model
        canary, smollm2, the path of a transformers model, or without weights symbolic or
        symbolic-windows (which has two KV groups).
    prompts
        Plain text with one prompt a line; JSON lines with prompt or prompt_tokens and any of the
        fields in docs/engine.md (tenant, priority, n, arrival_step, ...); or a Mooncake request
        trace (known by its fields: timestamp, input_length, output_length, hash_ids).
    scenario
        A workload by name: default.
    poisson
        Random traffic, as in `kvrewind simulate --help`: rate=4,count=100,...
    first
        Take only that many requests of the workload.
    clock
        By what prompts arrive that arrive in seconds: wall, or simulated (the model takes the time
        that an 8B model takes on an A100, and nobody waits); simulated where the model is.
    max_new_tokens
        Most tokens to generate for a prompt that names no limit of its own.
    output
        The trace to write; run.kvtrace when not given.
    store
        Record into a database that holds many runs, instead of a file of its own: an SQLAlchemy
        URL, as in postgresql+psycopg://user@host/database or sqlite:///fleet.db. ?run=NAME at its
        end names the run, which is given a name otherwise.
    force
        Write over an existing trace.
    ring
        Keep only the end of the run, so that recording can be left on for days: 200steps (and up to
        a quarter more), or 64MB. A finding freezes it: the file keeps what led to it.
    when_full
        When the disk can't keep up. block: the run waits for it. drop-and-mark: the run goes on;
        whole steps are left out, the trace says which, and is never called clean.
    buffer
        How many events may wait for the disk before that.
    on_finding
        What to do when a check of a step finds something. log: say it on standard error. freeze:
        and with --ring, keep what is recorded and a little more. raise: and end the run after that
        step. off: check nothing while it runs. If not given: freeze with --ring, else log.
    metrics
        Serve Prometheus metrics while it runs: at this port of this machine (0: a free one), or at
        HOST:PORT.
    redact
        Record keyed hashes instead of tokens and keys, and no text (docs/recording.md says what
        can still be told). --redact=all: nor the names of requests, tenants, sessions, adapters.
    redact_key
        The key of the hashes: a file of at least 16 random bytes, so that several processes agree.
        Without it, a random one that nobody keeps.
    show
        List the events of these kinds, as in RequestForked,BlockCopied; may be repeated.
    """
    if output is not None:
        require_output(output, [prompts] if prompts else [], force=force)
    target = _target(output, store)
    if max_new_tokens < 1:
        raise BadInput(f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    kinds = kinds_of(show)
    chosen = dict(given(switches))
    workload = Source.of(prompts, scenario, poisson, first).workload(chosen.get("seed", 0))
    config = with_implied(EngineConfig(**(dict(workload.switches) | chosen)))
    redactor = redactor_of(redact, redact_key)
    keep = Keep.of(when_full, buffer, ring)
    loaded = open_model(model, config)
    tokenized = tokenize(loaded, workload.specs, max_new_tokens)
    path = target or unused_path("run")
    with Watch(on_finding or ("freeze" if keep.ring else "log"), metrics) as watch:
        recorded = record_run(
            loaded,
            config,
            tokenized,
            path,
            force=force,
            clock_name=clock,
            watch=watch,
            redactor=redactor,
            keep=keep,
        )
    _print_answers(recorded, loaded, is_redacted=redactor is not None)
    if kinds:
        _print_events(recorded.path, kinds)
    failures = _failures(recorded.engine)
    for why, names in failures.items():
        say(f"failed: {', '.join(names)}: {why}")
    _print_summary(recorded, "recording and checking" if watch.is_in_writer else "recording")
    return 1 if failures or recorded.was_ended else 0


def _target(output: Path | None, store: str | None) -> Place | None:
    """Raises BadInput for what is no URL, and for a file and a database at once."""
    if store is None:
        return output
    if output is not None:
        raise BadInput("--out and --store are two places; give one of them")
    address = place_of(store)
    if not isinstance(address, RunAddress):
        raise BadInput(f"--store takes a URL; write sqlite:///{address} for a SQLite database")
    return address


def tokenize(model: Model, specs: Sequence[PromptSpec], max_new_tokens: int) -> list[Prompt]:
    return [spec.tokenized(model.encode, max_new_tokens) for spec in specs]


def record_run(
    model: Model,
    config: EngineConfig,
    prompts: Sequence[Prompt],
    path: Place,
    *,
    force: bool = False,
    progress: bool = True,
    clock_name: ClockName | None = None,
    watch: Watch | None = None,
    redactor: Redactor | None = None,
    keep: Keep | None = None,
) -> Recorded:
    """Run to the end and record it. What can't be served is refused before the file is made.
    With a redactor, neither the trace nor the checks hear of tokens and texts; passphrases are
    listened for before.

    Interrupted, the trace holds what was recorded and says that it is incomplete.
    """
    watch, keep = watch or Watch(), keep or Keep()
    runner = model.runner(config)
    refuse_impossible(prompts, config, runner.card)
    shadow = Shadow(policy_of(config))
    policy = shadow if config.faults else None
    with keep.writer(path, force=force) as writer:
        clock = _clock(clock_name, model, config)
        sink = watch.recording(writer, has_ring=keep.ring is not None)
        if redactor is not None:
            redacting = RedactingSink(sink, redactor)
            sink = watch.in_clear(redacting, lambda name: str(redactor.name(name)))
        engine = make_engine(
            model, config, prompts, sink, runner=runner, policy=policy, clock=clock
        )
        started = time.perf_counter()
        try:
            ended_by = _run(engine, len(prompts), progress, watch)
            if ended_by is not None:
                sink.emit(RunEnded(reason=str(ended_by)), engine.step_number)
            writer.close()
        except KeyboardInterrupt:
            if waiting := writer.queued_events:
                say(f"stopping: {waiting:,} events are still to be written and checked")
            writer.close()
            watch.finish()
            whole = "the whole run" if not engine.has_work else "what was recorded"
            end = "" if not engine.has_work else " and says that it is incomplete"
            say(f"stopped in step {engine.step_number}; {writer.path} holds {whole}{end}")
            raise
    seconds = time.perf_counter() - started  # the last of the writing is a cost of recording too
    for remark in remarks(writer):
        say(remark)
    watch.finish()
    if ended_by is not None:
        say(f"{ended_by} (--on-finding raise)")
    if config.faults and not shadow.differing:
        say(_no_bite(config))
    spent = writer.emit_s + writer.busy_s
    return Recorded(writer.path, engine, seconds, spent, writer.events, ended_by is not None)


def _no_bite(config: EngineConfig) -> str:
    """A run in which a planted fault decided nothing proves nothing about it."""
    faults = [fault_named(name) for name in config.faults]
    needs = "; ".join(f"{fault.name} needs {fault.needs}" for fault in faults if fault.needs)
    names = " and ".join(config.faults)
    return f"note: {names} changed no decision of this run" + (f" ({needs})" if needs else "")


def _run(engine: Engine, requests: int, show: bool, watch: Watch) -> FindingMade | None:
    """To its end, or to a finding that ends it."""
    with Progress(console=err(), transient=True, disable=not show) as bar:
        task = bar.add_task("recording", total=requests)

        def on_step() -> None:
            bar.update(task, completed=engine.num_finished)
            watch.step_over()

        try:
            with rarely_collected():
                engine.run(on_step=on_step)
        except DidNotFinish as stuck:
            say(str(stuck))
        except FindingMade as made:
            return made
    return None


def _clock(name: ClockName | None, model: Model, config: EngineConfig) -> Clock:
    if (name or ("simulated" if isinstance(model, SymbolicModel) else "wall")) == "simulated":
        return SimulatedClock(steps_in_flight=config.steps_in_flight)
    return WallClock()


def _print_answers(recorded: Recorded, model: Model, *, is_redacted: bool) -> None:
    """Under redaction without the answers: standard output is kept as often as traces are."""
    requests = recorded.engine.requests
    answers = {name: model.decode(_sampled(request)) for name, request in requests.items()}
    passphrases = {name: r.prompt.passphrase for name, r in requests.items()}
    table = Table(box=None, pad_edge=False)
    for column in ("request", "prompt", "answer"):
        table.add_column(column, overflow="fold")
    for name, request in requests.items():
        foreign = foreign_passphrases(name, answers[name], passphrases)
        note = f"  <- {foreign[0][1]}'s passphrase" if foreign else ""
        prompt = f"{len(request.prompt.prompt_tokens)} tokens"
        said = f"{request.num_sampled} tokens" if is_redacted else answers[name]
        table.add_row(name, prompt, said + note)
    out().print(table, markup=False)


def _print_events(path: Place, kinds: Sequence[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("position", "event", "what", "decision"):
        table.add_column(column, overflow="fold")
    with TraceReader(path) as reader:
        for row in listed(reader, kinds):
            table.add_row(*row)
    out().print()
    out().print(table, markup=False)


def _sampled(request: Request) -> list[int]:
    return request.tokens[len(request.tokens) - request.num_sampled :]


def _failures(engine: Engine) -> dict[str, list[str]]:
    """Which step raised what -> the requests that it ended."""
    failures: dict[str, list[str]] = {}
    for request in engine.requests.values():
        if request.error is not None:
            failures.setdefault(request.error, []).append(request.name)
    return failures


def _print_summary(recorded: Recorded, what: str) -> None:
    engine = recorded.engine
    tokens = sum(request.num_sampled for request in engine.requests.values())
    say(
        f"{recorded.path}: {engine.step_number} steps, {recorded.events} events, "
        f"{len(engine.requests)} requests, {tokens} tokens in {recorded.seconds:.2f} s; "
        f"{what} took {100 * recorded.recording_share:.1f} % of it"
    )
    say(f"next: {shlex.join(['kvrewind', 'check', str(recorded.path)])}")
