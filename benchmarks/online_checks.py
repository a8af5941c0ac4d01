"""What checking each step while it is recorded costs, in microseconds an event, and rule by rule.

    python benchmarks/online_checks.py [--repeats N] [--new-tokens N]

The simulator's events are kept in memory and shown to the checks a step at a time, as the
recorder's thread does. Half of each prompt is the same. Times are of the processor, the least of
the repeats; those of a rule are of its own calls, less what timing them takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.garbage import rarely_collected
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import synthetic_tokens
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.checks import CHECKS
from kvrewind.replay.completeness import Seqs
from kvrewind.replay.inspection import RankInspection
from kvrewind.replay.online import OnlineChecks
from kvrewind.replay.reducer import apply
from kvrewind.replay.run_tally import RunTally
from kvrewind.replay.state import State
from rich.console import Console
from rich.table import Table

Steps = Sequence[Sequence[Envelope]]
Observer = Callable[[Sequence[Envelope]], Any]


class Case(NamedTuple):
    rows: int
    prompt: int


CASES = (Case(1, 64), Case(8, 64), Case(32, 64), Case(32, 2048))
RULES_OF = Case(32, 64)


def recorded(case: Case, new_tokens: int) -> Steps:
    shared = synthetic_tokens("shared", case.prompt // 2)
    prompts = [
        Prompt(
            request=f"r{i}",
            prompt_tokens=(*shared, *synthetic_tokens(f"own {i}", case.prompt - len(shared))),
            max_new_tokens=new_tokens,
            ignore_eos=True,
        )
        for i in range(case.rows)
    ]
    blocks = case.rows * ((case.prompt + new_tokens) // 16 + 2)
    config = EngineConfig(num_blocks=blocks, max_num_seqs=case.rows)
    sink = MemorySink()
    make_engine(SymbolicModel(), config, prompts, sink).run()
    return [list(step) for _, step in groupby(sink.envelopes, key=lambda e: e.step)]


def folding() -> Observer:
    state = State()

    def fold(step: Sequence[Envelope]) -> None:
        for envelope in step:
            apply(state, envelope)

    return fold


def seconds(steps: Steps, make: Callable[[], Observer], repeats: int) -> float:
    taken: list[float] = []
    for _ in range(repeats):
        observer = make()
        with rarely_collected():
            started = time.process_time()
            for step in steps:
                observer(step)
            taken.append(time.process_time() - started)
    return min(taken)


def of_rules(steps: Steps) -> dict[str, float]:
    """Rule -> seconds of its own calls."""
    spent = dict.fromkeys((rule.slug for rule in CHECKS), 0.0)
    clock = time.thread_time
    started = clock()
    for _ in range(100_000):
        clock()
    overhead = (clock() - started) / 100_000

    def timed(slug: str, call: Callable[..., None]) -> Callable[..., None]:
        def with_clock(*arguments: Any) -> None:
            started = clock()
            call(*arguments)
            spent[slug] += clock() - started - overhead

        return with_clock

    inspection = RankInspection(Seqs())
    for rule in inspection._rules:
        rule.read = timed(rule.slug, rule.read)  # type: ignore[method-assign]
    for hooks in (inspection._before, inspection._after):
        for kind, calls in hooks.items():
            hooks[kind] = tuple(timed(call.__self__.slug, call) for call in calls)  # type: ignore
    with rarely_collected():
        for step in steps:
            for envelope in step:
                inspection.see(envelope)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=256)
    chosen = parser.parse_args()
    console = Console(width=100, highlight=False)
    runs = {case: recorded(case, chosen.new_tokens) for case in CASES}
    console.print(costs(runs, chosen.repeats))
    console.print(rules(runs[RULES_OF]))


def costs(runs: dict[Case, Steps], repeats: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("prompt", "rows", "events a step", "folding", "all checks", "gauges",
                    "all checks, us a step"):  # fmt: skip
        table.add_column(heading, justify="right")
    for case, steps in runs.items():
        events = sum(map(len, steps))
        fold, checks, gauges = (
            seconds(steps, make, repeats) for make in (folding, OnlineChecks, RunTally)
        )
        each = (f"{1e6 * taken / events:.1f}" for taken in (fold, checks, gauges))
        table.add_row(
            str(case.prompt), str(case.rows), f"{events / len(steps):.1f}", *each,
            f"{1e6 * checks / len(steps):,.0f}",
        )  # fmt: skip
    return table


def rules(steps: Steps) -> Table:
    events = sum(map(len, steps))
    table = Table(box=None, pad_edge=False)
    table.add_column("rule")
    table.add_column("us an event", justify="right")
    for slug, spent in sorted(of_rules(steps).items(), key=lambda item: -item[1]):
        table.add_row(slug, f"{max(1e6 * spent / events, 0):.2f}")
    return table


if __name__ == "__main__":
    main()
