"""`kvrewind demo`: what the tool does, in five acts, on a live run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.text import Text

from ...engine.config import EngineConfig
from ...engine.faults.registry import with_implied
from ...engine.llm import Model, open_model
from ...engine.request import Prompt
from ...engine.workloads.default import default_workload
from ...recorder.events import Envelope
from ...recorder.reader import TraceReader
from ...recorder.stores.address import Place
from ...replay.bisect import Bisection
from ...replay.bisect import bisect as search
from ...replay.check import check
from ...replay.oracles import foreign_passphrases
from ...replay.recording import Recording
from ...replay.reexecute import Reexecutor
from ...replay.report import render
from ...replay.verdict import Report
from ..app import KvrewindApp
from ..console import err, out
from ..options import unused_path
from .bisect import notebook
from .record import Recorded, record_run, tokenize
from .replay import answers

FAULT = "key-length-only"
ACTS = 5


@dataclass(frozen=True, slots=True)
class Leak:
    """One answer with somebody else's passphrase, and the same request run alone."""

    victim: str
    prompt: str
    answer: str
    word: str
    owner: str
    alone: str


def demo(*, model: str = "canary") -> int:
    """Record a run with one planted fault, find the leak, and name the decision that allowed it.

    For example:

        kvrewind demo

    Parameters
    ----------
    model
        canary, or symbolic (no weights, no torch).
    """
    with _progress() as bar:
        stage = bar.add_task("loading the model", total=ACTS)
        workload = default_workload()
        clean = EngineConfig(**workload.switches)
        faulty = with_implied(replace(clean, faults=(FAULT,)))
        loaded = open_model(model, faulty)
        prompts = tokenize(loaded, workload.specs, 32)

        bar.update(stage, description="act 1: recording a live run", advance=1)
        recorded = record_run(loaded, faulty, prompts, unused_path("demo"), progress=False)
        with TraceReader(recorded.path) as reader:
            envelopes = list(reader.envelopes())
        report = check(envelopes)
        executor = Reexecutor(Recording.of(envelopes), loaded)
        bar.update(stage, description="act 2: the same request alone", advance=1)
        leak = _leak(loaded, envelopes, prompts, executor)
        bar.update(stage, description="act 4: bisecting", advance=1)
        found = search(
            envelopes, executor, progress=lambda what: bar.update(stage, description=what)
        )
        bar.update(stage, description="act 5: the same run without the fault", advance=1)
        twin = record_run(loaded, clean, prompts, unused_path("demo-clean"), progress=False)
        with TraceReader(twin.path) as reader:
            verdict = check(list(reader.envelopes()))
    _tell(recorded, leak, report, found, twin, verdict)
    return _show(recorded.path, _culprit_position(report, envelopes))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=err(),
        transient=True,
    )


def _leak(
    model: Model, envelopes: Sequence[Envelope], prompts: Sequence[Prompt], executor: Reexecutor
) -> Leak | None:
    """The first answer, in the order of arrival, that says a passphrase it can't know."""
    words = {prompt.request: prompt.passphrase for prompt in prompts}
    said = {name: model.decode(tokens) for name, tokens in answers(list(envelopes)).items()}
    for prompt in prompts:
        foreign = foreign_passphrases(prompt.request, said[prompt.request], words)
        if not foreign:
            continue
        word, owner = foreign[0]
        alone = executor.run(only=prompt.request).envelopes
        return Leak(
            victim=prompt.request,
            prompt=model.decode(prompt.prompt_tokens),
            answer=said[prompt.request],
            word=word,
            owner=owner,
            alone=model.decode(answers(alone)[prompt.request]),
        )
    return None


def _tell(
    recorded: Recorded,
    leak: Leak | None,
    report: Report,
    found: Bisection,
    twin: Recorded,
    verdict: Report,
) -> None:
    console = out()
    _act(1, "eight customers, one paged cache")
    console.print(_first_act(recorded), markup=False)
    _act(2, "somebody else's passphrase")
    console.print(_second_act(leak), markup=False)
    _act(3, f"kvrewind check {recorded.path}")
    with TraceReader(recorded.path) as reader:
        console.print(render(report, reader, console.width))
    _act(4, f"kvrewind bisect {recorded.path}")
    console.print(notebook(found))
    _act(5, "the same workload without the fault")
    console.print(_fifth_act(twin, verdict), markup=False)
    console.print()


def _act(number: int, title: str) -> None:
    console = out()
    console.print()
    heading = Text.assemble((f"Act {number}", "bold"), f"  {title}")
    console.print(Rule(heading, align="left"))


def _first_act(recorded: Recorded) -> Text:
    engine = recorded.engine
    told = {request.prompt.passphrase for request in engine.requests.values()}
    text = Text(
        f"{len(told)} customers, each with a passphrase of its own, {len(engine.requests)} "
        f"requests under one system prompt, continuous batching and the prefix cache on.\n"
        f"The engine has one planted fault: {FAULT}. Nothing below reads that.\n"
    )
    text.append(
        f"{recorded.path}: {engine.step_number} steps, {recorded.events} events, "
        f"{recorded.seconds:.2f} s.",
        style="dim",
    )
    return text


def _second_act(leak: Leak | None) -> Text:
    if leak is None:
        return Text("No answer says a passphrase that it can't know; act 3 judges by the log.")
    text = Text()
    text.append(f"{leak.victim} was told  ")
    text.append(f"... {leak.prompt[leak.prompt.find('user :') :]}\n", style="dim")
    text.append("in the mix it says    ")
    _highlight(text, leak.answer, leak.word)
    text.append(f"   <- {leak.owner}'s passphrase\n", style="red")
    text.append(f"alone it says         {leak.alone}")
    return text


def _highlight(text: Text, answer: str, word: str) -> None:
    before, found, after = answer.partition(word)
    text.append(before)
    text.append(found, style="bold red reverse")
    text.append(after)


def _fifth_act(twin: Recorded, report: Report) -> Text:
    return Text(
        f"verdict {report.verdict}, {len(report.findings)} findings "
        f"({twin.engine.step_number} steps, {twin.events} events).\n"
        f"Recording took {100 * twin.recording_share:.1f} % of the run's {twin.seconds:.2f} s."
    )


def _culprit_position(report: Report, envelopes: Sequence[Envelope]) -> str | None:
    culprits = [finding.culprit_seq for finding in report.roots]
    return next((e.position for e in envelopes if culprits and e.seq == culprits[0]), None)


def _show(path: Place, culprit: str | None) -> int:
    """Open the app at the culprit, or say how to."""
    command = shlex.join(["kvrewind", "open", str(path), *([culprit] if culprit else [])])
    if not sys.stdout.isatty():
        out().print(f"Step through it:  {command}", markup=False)
        return 0
    out().print("Press Enter to step through it, Ctrl-C to leave.", style="bold")
    try:
        input()
    except (EOFError, KeyboardInterrupt):
        out().print(f"Later:  {command}", markup=False)
        return 0
    with TraceReader(path) as reader:
        KvrewindApp(reader, position=culprit).run()
    return 0
