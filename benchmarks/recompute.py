"""The KV cache against recomputation: what a token costs, by the length before it.

    python benchmarks/recompute.py [--quick] [--repeats N]

SmolLM2-135M on the CPU, float32, greedy, one request. With the cache a token is a decode step;
recomputing, it is the prefill of all tokens so far, of which only the last one's logits are used.
transformers with its dynamic cache, and without one, beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.models import LoadedModel, load_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import numbered_tokens
from measuring import (
    Clocks,
    generate,
    in_turns,
    machine,
    our_decoding,
    plain_model,
    repeated,
    serve,
    their_decoding,
)
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache

LENGTHS = (16, 64, 256, 512, 1024)
STEPS = 4
BLOCK_SIZE = 16


def contenders(
    model: LoadedModel, plain: Any, tokens: tuple[int, ...], steps: int
) -> dict[tuple[str, str], Callable[[], object]]:
    """(engine, way) -> what makes a token behind these, with a cache for up to `steps` times."""

    blocks = -(-(len(tokens) + steps + 1) // BLOCK_SIZE)  # a larger pool takes time to make
    config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=blocks, prefix_cache=False)

    def asked(new_tokens: int) -> list[Prompt]:
        return [
            Prompt(request="r", prompt_tokens=tokens, max_new_tokens=new_tokens, ignore_eos=True)
        ]

    return {
        ("kvrewind", "cache"): repeated(our_decoding(model, config, asked(steps + 1)), STEPS),
        ("kvrewind", "recomputing"): partial(serve, model, config, asked(1)),
        ("transformers", "cache"): repeated(
            their_decoding(plain, [tokens], DynamicCache(config=plain.config)), STEPS
        ),
        ("transformers", "recomputing"): partial(generate, plain, [tokens], 1, use_cache=False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two lengths, once")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lengths, repeats = (LENGTHS[:2], 1) if given.quick else (LENGTHS, given.repeats)
    model = load_model("smollm2", EngineConfig())
    plain = plain_model(model)
    started = machine()
    table = Table(box=None)
    table.add_column("length", justify="right")
    table.add_column("a token")
    for column in ("cache ms", "cpu ms", "recomputing ms", "cpu ms", "x s", "x cpu"):
        table.add_column(column, justify="right")
    for length in lengths:
        tokens = numbered_tokens(1, length)
        results = in_turns(contenders(model, plain, tokens, repeats * STEPS), repeats)
        for engine in ("kvrewind", "transformers"):
            cache = Clocks(*(s / STEPS for s in results[engine, "cache"]))
            recomputing = results[engine, "recomputing"]
            table.add_row(
                str(length),
                engine,
                *(f"{s * 1e3:.0f}" for s in (*cache, *recomputing)),
                f"{recomputing.seconds / cache.seconds:.1f}",
                f"{recomputing.processor / cache.processor:.1f}",
            )
        table.add_section()
    console = Console(width=120)
    console.print(f"SmolLM2-135M, CPU, float32, one request; least of {repeats}\n{started}")
    console.print(table)


if __name__ == "__main__":
    main()
