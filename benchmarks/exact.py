"""What exact mode costs, and what it buys: in one run, the two modes taking turns.

    python benchmarks/exact.py [--threads N] [--repeats N]

SmolLM2-135M on the CPU, float32, greedy: the 16 requests of `serving.py`, 32 new tokens each. Time
is the processor's, so that other work on the machine counts less, and the ratio is the median of
pairs of runs. Then some requests alone: how many of their tokens have, bit for bit, the log
probability and the margin that they had among the 16.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import transformers
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import make_engine
from kvrewind.engine.models import LoadedModel, load_model
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import TokensSampled
from kvrewind.recorder.memory import MemorySink
from rich.console import Console
from rich.table import Table
from serving import CONFIG, NEW_TOKENS, REQUESTS, SHARED, prompts

FAST = CONFIG
EXACT = replace(CONFIG, exact=True)
ALONE = (0, 1, 8, 15)
"""The requests that are also run alone."""


class Said(NamedTuple):
    token: int
    logprob: float
    margin: float


class Run(NamedTuple):
    """One run of all requests, or of some."""

    steps: list[float]
    """Processor seconds of each step."""
    said: dict[str, list[Said]]

    @property
    def seconds(self) -> float:
        return sum(self.steps)

    @property
    def decode(self) -> float:
        """Seconds of a step of nothing but decode rows."""
        return statistics.median(self.steps[2:])


def run(model: LoadedModel, config: EngineConfig, asked: Sequence[Prompt]) -> Run:
    sink = MemorySink()
    engine = make_engine(model, config, asked, sink)
    steps: list[float] = []
    while engine.has_work:
        started = time.process_time()
        engine.advance()
        steps.append(time.process_time() - started)
    engine.end()
    said: dict[str, list[Said]] = {}
    for event in (envelope.event for envelope in sink.envelopes):
        if isinstance(event, TokensSampled):
            logprobs, margins = event.logprobs or (), event.margins or ()
            rows = zip(event.requests, event.tokens, logprobs, margins, strict=True)
            for request, token, logprob, margin in rows:
                said.setdefault(request, []).append(Said(token, logprob, margin))
    return Run(steps, said)


def equal_to_alone(
    model: LoadedModel, config: EngineConfig, asked: Sequence[Prompt], mixed: Run
) -> tuple[int, int]:
    """(tokens whose numbers are, bit for bit, those of the request alone; tokens compared)"""
    pairs = [
        pair
        for number in ALONE
        for name, alone in run(model, config, [asked[number]]).said.items()
        for pair in zip(mixed.said[name], alone, strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def table(results: dict[str, list[Run]], equal: dict[str, tuple[int, int]]) -> Table:
    shown = Table(box=None)
    shown.add_column("", no_wrap=True)
    for column in ("tokens/cpu s", "x", "decode step, ms", "x", "as alone, bit for bit"):
        shown.add_column(column, justify="right")
    fast = results["fast"]
    for name, runs in results.items():
        tokens = REQUESTS * NEW_TOKENS / statistics.median(r.seconds for r in runs)
        pairs = list(zip(runs, fast, strict=True))
        shown.add_row(
            name,
            f"{tokens:.1f}",
            f"{statistics.median(a.seconds / b.seconds for a, b in pairs):.2f}",
            f"{1000 * statistics.median(r.decode for r in runs):.0f}",
            f"{statistics.median(a.decode / b.decode for a, b in pairs):.2f}",
            "{} of {} tokens".format(*equal[name]),
        )
    return shown


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load_model("smollm2", FAST)
    tokens = prompts(model)
    asked = [
        Prompt(
            request=f"r{i}",
            prompt_tokens=tuple(prompt),
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
        )
        for i, prompt in enumerate(tokens)
    ]
    configs = {"fast": FAST, "exact": EXACT}
    for config in configs.values():
        run(model, config, asked[:2])  # exact mode tries its tiles once
    results: dict[str, list[Run]] = {name: [] for name in configs}
    for _ in range(options.repeats):
        for name, config in configs.items():
            results[name].append(run(model, config, asked))
    equal = {
        name: equal_to_alone(model, config, asked, results[name][0])
        for name, config in configs.items()
    }
    console = Console(width=110)
    console.print(
        f"SmolLM2-135M, CPU, float32, {REQUESTS} requests of {min(map(len, tokens))} to "
        f"{max(map(len, tokens))} tokens ({SHARED} shared), {NEW_TOKENS} new each; "
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{torch.get_num_threads()} threads; median of {options.repeats} pairs"
    )
    console.print(table(results, equal))


if __name__ == "__main__":
    main()
