"""`kvrewind simulate`: a workload under several settings, before anybody pays for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.progress import Progress
from rich.table import Table

from ...engine.admission import refuse_impossible
from ...engine.clock import StepCost
from ...engine.config import EngineConfig
from ...engine.engine import Engine
from ...engine.faults.registry import with_implied
from ...engine.llm import SIMULATED, Model, open_model
from ...engine.request import Prompt
from ...engine.simulation import simulate as run_once
from ...engine.workloads.variations import faster, without_priorities
from ...recorder.errors import BadInput, KvrewindError
from ..comparison import VARIATIONS, Comparison, settings
from ..console import err, out, print_json, say
from ..options import Count, Format, MaybeCount, Switches, given
from ..presenters.simulations import Row, Run, as_json, rows, setting_cell
from ..watching import OnFindingUnrecorded, Watch
from ..workloads import Source

_STEPS_A_LOOK = 50
"""The progress bar moves once in as many steps."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to make: what makes it another than the rest, and all that it needs."""

    setting: Mapping[str, Any]
    config: EngineConfig
    prompts: Sequence[Prompt]
    asked: Sequence[Prompt]
    """The same with the priorities that the workload gives, by which the run is measured."""


def simulate(
    workload: Path | None = None,
    /,
    *,
    model: str = SIMULATED[0][0],
    scenario: str | None = None,
    poisson: str | None = None,
    compare: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    first: MaybeCount = None,
    speed: float = 1.0,
    cost: Annotated[str, Parameter(show_default=False)] = "",
    max_new_tokens: Count = 32,
    on_finding: OnFindingUnrecorded = "off",
    metrics: str | None = None,
    format: Format = "text",
    switches: Switches = Switches(),  # noqa: B008  # pyright: ignore[reportInvalidTypeForm]
) -> int:
    """Compare scheduler and cache policies on a workload, without a model and without a trace.

    Every request goes through the engine itself; only the model is left out, and time is worked
    out from what each step computes. One column for each combination of the values to compare.

    For example:

        kvrewind simulate examples/requests.jsonl --compare reuse=first-freed,last-freed

        kvrewind simulate --poisson rate=8,count=200,urgent=0.1 --compare priorities=on,off

        kvrewind simulate trace.jsonl --first 500 --compare block-size=16,32 --compare speed=1,2

    Parameters
    ----------
    workload
        A Mooncake request trace (JSON lines with timestamp, input_length, output_length, hash_ids;
        its lines may also say tenant, priority, ...), or a prompts file as in `record`.
    model
        symbolic, or symbolic-windows (layers that see the last 16 tokens beside others that see
        all: two KV groups).
    scenario
        A workload by name, as in `record`.
    poisson
        Random traffic: rate=PER_SECOND,count=N,prompt=LENGTHS,output=LENGTHS,prefix=LENGTHS,
        prefixes=N,shared=SHARE,tenants=N,urgent=SHARE, or any of them. LENGTHS: N, A..B, exp:MEAN
        or lognormal:MEDIAN:SIGMA. `shared` of the requests begin with one of the `prefixes`.
    compare
        A switch of the engine and the values to try, as in block-size=16,32; may be repeated.
        Besides switches: speed, and priorities=on,off (off: all requests are alike).
    first
        Take only that many requests of the workload.
    speed
        Let requests arrive this many times as fast.
    cost
        What a step takes, if not Llama 3 8B on an A100, in seconds: weights_s=0.008,token_s=...,
        context_token_s=...,host_s=..., or any of them. A step takes host_s
        and max(weights_s, tokens x token_s) and context x context_token_s.
    max_new_tokens
        Most tokens to generate for a prompt that names no limit of its own.
    on_finding
        Check each step, and where something is found log it, or raise: end with exit status 1. It
        takes twice the time, so it is off.
    metrics
        Serve Prometheus metrics of the run under way, as in `record`.
    format
        text, or json: one JSON value and nothing else.
    """
    if max_new_tokens < 1:
        raise BadInput(f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    source = Source.of(workload, scenario, poisson, first)
    step_cost = parse_cost(cost)
    comparisons = [Comparison.parse(text) for text in compare]
    simulator = _simulator(model)
    chosen = dict(given(switches)) | {"speed": speed}
    plan = list(_plan(source, chosen, comparisons, simulator, max_new_tokens))
    with Watch(on_finding, metrics) as watch:
        runs = list(_runs(plan, simulator, step_cost, watch))
    if format == "json":
        print_json(_as_json(source, step_cost, runs))
    else:
        _print_tables(runs)
        _print_remarks(plan[0].prompts, runs, step_cost)
    return 0


def _simulator(name: str) -> Model:
    known = [simulated for simulated, _ in SIMULATED]
    if name not in known:
        raise BadInput(f"simulate has no model {name!r}; it takes {' or '.join(known)}")
    return open_model(name, EngineConfig())


def parse_cost(text: str) -> StepCost:
    """From `weights_s=0.008,host_s=0`. Raises `BadInput`."""
    known = [f.name for f in fields(StepCost)]
    values: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name.strip() not in known:
            raise BadInput(f"--cost can't take {part!r}; known are {', '.join(known)}")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            raise BadInput(f"{name} of --cost must be a number of seconds, not {value!r}") from None
    return StepCost(**values)


def _plan(
    source: Source,
    chosen: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    model: Model,
    max_new_tokens: int,
) -> Iterator[Planned]:
    """Whatever can't be run is refused before anything is."""
    card = model.runner(EngineConfig()).card
    for setting in settings(comparisons):
        wanted = {**chosen, **setting}
        varied = {name: wanted.pop(name) for name in VARIATIONS if name in wanted}
        workload = source.workload(wanted.get("seed", 0))
        try:
            config = with_implied(EngineConfig(**(dict(workload.switches) | wanted)))
            specs = faster(workload.specs, varied["speed"])
            asked = [spec.tokenized(model.encode, max_new_tokens) for spec in specs]
            prompts = asked if varied.get("priorities", True) else without_priorities(asked)
            refuse_impossible(prompts, config, card)
        except KvrewindError as error:
            raise BadInput(f"{_label(setting)}{error}") from None
        yield Planned(setting, config, prompts, asked)


def _label(setting: Mapping[str, Any]) -> str:
    named = ", ".join(f"{name}={setting_cell(value)}" for name, value in setting.items())
    return f"with {named}: " if named else ""


def _runs(plan: Sequence[Planned], model: Model, cost: StepCost, watch: Watch) -> Iterator[Run]:
    with Progress(console=err(), transient=True) as bar:
        task = bar.add_task("simulating", total=sum(len(planned.prompts) for planned in plan))
        done = 0
        for planned in plan:
            result = run_once(
                model,
                planned.config,
                planned.prompts,
                cost,
                asked=planned.asked,
                on_step=_progress(bar, task, done, watch),
                watched=watch.looking_on,
            )
            watch.finish()
            done += len(planned.prompts)
            yield Run(planned.setting, result)


def _progress(bar: Progress, task: Any, done: int, watch: Watch) -> Callable[[Engine], None]:
    def on_step(engine: Engine) -> None:
        watch.step_over()
        if engine.step_number % _STEPS_A_LOOK == 0:  # counting takes time in itself
            bar.update(task, completed=done + engine.num_finished)

    return on_step


def _print_tables(runs: Sequence[Run]) -> None:
    """One table, or several below each other where the settings don't fit side by side."""
    console = out()
    titles = [row.title for row in rows(runs)]
    beside = max((console.width - max(map(len, titles))) // (_widest(runs) + 2), 1)
    for start in range(0, len(runs), beside):
        if start:
            console.print()
        console.print(_table(rows(runs), runs[start : start + beside]), markup=False)


def _widest(runs: Sequence[Run]) -> int:
    cells = [setting_cell(value) for run in runs for value in run.setting.values()]
    return max(map(len, [*cells, "0000.0 ms"]))


def _table(shown: Sequence[Row], runs: Sequence[Run]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=bool(runs[0].setting))
    table.add_column("\n".join(name.replace("_", "-") for name in runs[0].setting), no_wrap=True)
    for run in runs:
        header = "\n".join(map(setting_cell, run.setting.values()))
        table.add_column(header, justify="right", overflow="fold")
    for row in shown:
        table.add_row(row.title, *(row.cell(run.result.measured) for run in runs))
    return table


def _print_remarks(prompts: Sequence[Prompt], runs: Sequence[Run], cost: StepCost) -> None:
    measured = runs[0].result.measured
    model = "Llama 3 8B on one A100, worked out" if cost == StepCost() else "the --cost given"
    say(
        f"{len(prompts)} requests, {measured.prompt_tokens} prompt tokens; times are simulated "
        f"({model})"
    )
    for run in runs:
        if run.result.stuck is not None:
            say(f"{_label(run.setting)}{run.result.stuck}")


def _as_json(source: Source, cost: StepCost, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "workload": source.name,
        "cost": asdict(cost),
        "runs": [as_json(run) for run in runs],
    }
