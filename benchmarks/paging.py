"""Paged against contiguous: how well memory is used, and the speed of decoding by length.

    python benchmarks/paging.py [--quick] [--repeats N]

Memory: 32 requests of mixed lengths (prompts of 10 to 500 tokens, 16 to 128 new), 8 at a time, by
the memory account of the run. Use is the share of the memory held that holds a token's KV:
paged, in blocks of 16; one stretch a request as long as it may come to; one as long as the model's
context. What is held is settled by the scheduler, so the simulator runs it.

Speed: SmolLM2-135M on the CPU, float32, 4 requests of one length; timed are decode steps behind it,
a few at a time, in turns. `one block`: our engine with blocks as long as a request. transformers
keeps one tensor a layer: `dynamic` is copied to a longer one with every token, `static` is as long
as it gets from the start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel
from kvrewind.engine.models import LoadedModel, load_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import numbered_tokens
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.memory_account import MemoryAccount
from kvrewind.replay.memory_report import Ask, Memory
from measuring import in_turns, machine, our_decoding, plain_model, repeated, serve, their_decoding
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache, StaticCache

CONTEXT = 2048
"""What most models of the articles' time had."""

BLOCK_SIZE = 16
STEPS = 6
ROWS = 4
LENGTHS = (64, 128, 256, 512, 1024)
BASE = "one block"


def mixed_requests() -> list[Prompt]:
    return [
        Prompt(
            request=f"r{i}",
            prompt_tokens=numbered_tokens(i, 10 + i * 173 % 491),
            max_new_tokens=16 + i * 37 % 113,
            ignore_eos=True,
        )
        for i in range(32)
    ]


def memory(block_size: int) -> Memory:
    config = EngineConfig(
        block_size=block_size,
        num_blocks=8192 // block_size,
        max_num_seqs=8,
        prefix_cache=False,
    )
    sink, account = MemorySink(), MemoryAccount()
    serve(SymbolicModel(), config, mixed_requests(), sink)
    for envelope in sink.envelopes:
        account.see(envelope)
    return account.report(Ask(context=CONTEXT))


def memory_table() -> Table:
    table = Table(box=None)
    table.add_column("memory")
    for column in ("use", "mean held, in terms of blocks of 16"):
        table.add_column(column, justify="right")
    base = None
    for size in (16, 32, 64, 128):
        account = memory(size)
        held, wasted = account.held, account.fragmentation
        if held is None or wasted is None or wasted.mean_share is None:
            raise RuntimeError("the memory account of a whole run is whole")
        slots = held.mean_blocks * size
        base = base or (slots, account)
        table.add_row(
            f"paged, blocks of {size}", f"{1 - wasted.mean_share:.1%}", f"{slots / base[0]:.2f}"
        )
    if base is not None:
        for name, reserved in (
            ("contiguous, as long as each may come to", base[1].contiguous.longest),
            (f"contiguous, the context of {CONTEXT}", base[1].contiguous.context),
        ):
            if reserved is not None and reserved.mean_wasted_share is not None:
                use = f"{1 - reserved.mean_wasted_share:.1%}"
                table.add_row(name, use, f"{reserved.mean_times_held:.2f}")
    return table


def contenders(model: LoadedModel, plain: Any, length: int, steps: int) -> dict[str, Any]:
    """A decode step of each, behind prompts of that length, for up to `steps` of them."""
    tokens = [numbered_tokens(i, length) for i in range(ROWS)]
    longest = length + steps + 1
    asked = [
        Prompt(request=f"r{i}", prompt_tokens=t, max_new_tokens=steps + 1, ignore_eos=True)
        for i, t in enumerate(tokens)
    ]

    def ours(block_size: int) -> Callable[[], object]:
        config = EngineConfig(
            block_size=block_size,
            num_blocks=ROWS * -(-longest // block_size),
            max_num_seqs=ROWS,
            max_num_batched_tokens=ROWS * length,
            prefix_cache=False,
        )
        return our_decoding(model, config, asked)

    return {
        BASE: ours(longest),
        "paged": ours(BLOCK_SIZE),
        "transformers dynamic": their_decoding(plain, tokens, DynamicCache(config=plain.config)),
        "transformers static": their_decoding(
            plain, tokens, StaticCache(config=plain.config, max_cache_len=longest)
        ),
    }


def speed_table(lengths: tuple[int, ...], repeats: int) -> Table:
    model = load_model("smollm2", EngineConfig())
    plain = plain_model(model)
    table = Table(box=None)
    table.add_column("length", justify="right")
    table.add_column("decode step")
    for column in ("ms", "cpu ms", "x s", "x cpu"):
        table.add_column(column, justify="right")
    for length in lengths:
        steps = contenders(model, plain, length, repeats * STEPS)
        results = in_turns({n: repeated(step, STEPS) for n, step in steps.items()}, repeats)
        for name, took in results.items():
            table.add_row(
                str(length),
                name,
                f"{took.seconds / STEPS * 1e3:.0f}",
                f"{took.processor / STEPS * 1e3:.0f}",
                f"{results[BASE].seconds / took.seconds:.2f}",
                f"{results[BASE].processor / took.processor:.2f}",
            )
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two lengths, once")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lengths, repeats = (LENGTHS[:2], 1) if given.quick else (LENGTHS, given.repeats)
    console = Console(width=120)
    console.print(machine())
    console.print(memory_table())
    console.print(
        f"\nSmolLM2-135M, CPU, float32; {ROWS} rows, {STEPS} steps at a time; least of {repeats}; "
        f"x in terms of {BASE}"
    )
    console.print(speed_table(lengths, repeats))


if __name__ == "__main__":
    main()
