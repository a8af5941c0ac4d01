"""Packed against padded: requests of very different lengths, prefilled in one step.

    python benchmarks/packing.py [--quick] [--repeats N] [--requests N]

SmolLM2-135M on the CPU, float32, greedy. Prompts of 10 to 500 tokens, evenly spread, handed in at
once; nothing is shared. Prefill: one token each, so that the prompts are all the work. Whole run:
32 tokens each. `padded` layouts are the engine's own, the same but for the pads; `generate` is
transformers', which keeps its pads in the cache to the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.models import LoadedModel, load_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import numbered_tokens
from measuring import generate, in_turns, machine, plain_model, serve
from rich.console import Console
from rich.table import Table

SHORTEST, LONGEST = 10, 500
NEW_TOKENS = {"prefill": 1, "whole run": 32}
LAYOUTS = ("packed", "padded-left", "padded-right")
BASE = "padded-left"


def prompts(requests: int) -> list[tuple[int, ...]]:
    """The long ones not all at the end, since rows keep their order."""
    apart = (LONGEST - SHORTEST) / max(requests - 1, 1)
    lengths = [SHORTEST + round(apart * (i * 7 % requests)) for i in range(requests)]
    return [numbered_tokens(i, length) for i, length in enumerate(lengths)]


def contenders(
    model: LoadedModel, plain: Any, given: list[tuple[int, ...]], new_tokens: int
) -> dict[str, Callable[[], object]]:
    sized = EngineConfig(
        num_blocks=len(given) * 40,
        max_num_seqs=len(given),
        max_num_batched_tokens=sum(map(len, given)),
        prefix_cache=False,
    )
    asked = [
        Prompt(request=f"r{i}", prompt_tokens=tokens, max_new_tokens=new_tokens, ignore_eos=True)
        for i, tokens in enumerate(given)
    ]
    ours = {n: partial(serve, model, replace(sized, layout=n), asked) for n in LAYOUTS}
    return {**ours, "transformers generate": partial(generate, plain, given, new_tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=8, help="not a multiple of 7")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="four requests, once")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    requests, repeats = (4, 1) if options.quick else (options.requests, options.repeats)
    given = prompts(requests)
    model = load_model("smollm2", EngineConfig())
    plain = plain_model(model)
    tokens = sum(map(len, given))
    started = machine()
    table = Table(box=None)
    for column in ("", "contender"):
        table.add_column(column)
    for column in ("s", "cpu s", "tokens/cpu s", "x s", "x cpu"):
        table.add_column(column, justify="right")
    for what, new_tokens in NEW_TOKENS.items():
        results = in_turns(contenders(model, plain, given, new_tokens), repeats)
        base = results[BASE]
        for name, took in results.items():
            table.add_row(
                what,
                name,
                f"{took.seconds:.2f}",
                f"{took.processor:.2f}",
                f"{(tokens + requests * new_tokens) / took.processor:.0f}",
                f"{base.seconds / took.seconds:.2f}",
                f"{base.processor / took.processor:.2f}",
            )
        table.add_section()
    console = Console(width=120)
    console.print(
        f"SmolLM2-135M, CPU, float32; {requests} requests of {SHORTEST} to {LONGEST} tokens, "
        f"{tokens} in all, {1 - tokens / requests / LONGEST:.0%} of the padded prompts are pads; "
        f"least of {repeats}; x in terms of {BASE}; tokens: prompts and answers, pads left out\n"
        f"{started}"
    )
    console.print(table)


if __name__ == "__main__":
    main()
