"""Prefix sharing on against off: throughput and memory, by prompt length and batch.

    python benchmarks/prefix_sharing.py [--quick] [--repeats N] [--most-tokens N]

SmolLM2-135M on the CPU, float32, greedy. The requests of a batch are handed in at once; 90 % of
each prompt is the same, and each generates 16 tokens. Batches with more prompt tokens than
`--most-tokens` are not computed: their memory, which is settled by the scheduler and not by the
model, is taken from the same run of the simulator, and their time is left empty.

Contenders: sharing `off`; whole `blocks` of an equal prefix; whole `sequences` (an earlier
request's prompt and answer must be a prefix of this one), which the articles call sharing of full
sequences; the same in the layout they draw it in, `dense`, one mask over the keys of all rows.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial

import torch
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.header import run_header
from kvrewind.engine.llm import SymbolicModel
from kvrewind.engine.models import load_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import synthetic_tokens
from kvrewind.replay.kv_footprint import Footprint
from measuring import Clocks, in_turns, machine, memory_of, serve
from rich.console import Console
from rich.table import Table

LENGTHS = (128, 512, 2048)
BATCHES = (1, 4, 8, 32)
COMMON = 0.9
NEW_TOKENS = 16
BLOCK_SIZE = 16
CONTENDERS = {
    "off": {"sharing": "off"},
    "blocks": {"granularity": "block"},
    "sequences": {"granularity": "sequence"},
    "sequences, dense": {"granularity": "sequence", "layout": "dense"},
}
MOST_DENSE_TOKENS = 2048
"""Of a batch in the dense layout, whose mask has a row for each token and a column for each key."""


@dataclass(frozen=True, slots=True)
class Case:
    length: int
    batch: int

    @property
    def tokens(self) -> int:
        return self.length * self.batch

    def prompts(self) -> list[Prompt]:
        common = int(self.length * COMMON)
        return [
            Prompt(
                request=f"r{i}",
                prompt_tokens=(
                    *synthetic_tokens("common", common),
                    *synthetic_tokens(f"own {i}", self.length - common),
                ),
                max_new_tokens=NEW_TOKENS,
                ignore_eos=True,
            )
            for i in range(self.batch)
        ]

    def config(self, contender: str) -> EngineConfig:
        blocks = -(-(self.length + NEW_TOKENS) // BLOCK_SIZE)
        sized = EngineConfig(
            block_size=BLOCK_SIZE, num_blocks=self.batch * blocks, max_num_seqs=self.batch
        )
        return replace(sized, **CONTENDERS[contender])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--most-tokens", type=int, default=8192, help="of a batch's prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="prompts of 128 tokens, few batches")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model, simulator = load_model("smollm2", EngineConfig()), SymbolicModel()
    header = run_header(EngineConfig(block_size=BLOCK_SIZE), model.runner(EngineConfig()))
    block_bytes = Footprint.of(header).bytes_per_block or 0
    table = _table()
    lengths, batches = (LENGTHS[:1], (1, 8)) if given.quick else (LENGTHS, BATCHES)
    started = machine()
    for case in (Case(length, batch) for length in lengths for batch in batches):
        names = [n for n in CONTENDERS if "dense" not in n or case.tokens <= MOST_DENSE_TOKENS]
        times: dict[str, Clocks] = {}
        if case.tokens <= given.most_tokens:
            times = in_turns(
                {n: partial(serve, model, case.config(n), case.prompts()) for n in names},
                given.repeats,
            )
        held = {n: _peak_blocks(simulator, case, n) for n in names}
        for name in names:
            table.add_row(*_row(case, name, times, held, block_bytes))
        table.add_section()
    console = Console(width=120)
    console.print(
        f"SmolLM2-135M, CPU, float32; {COMMON:.0%} of each prompt common, {NEW_TOKENS} new tokens, "
        f"blocks of {BLOCK_SIZE}; least of {given.repeats}\n{started}"
    )
    console.print(table)


def _peak_blocks(simulator: SymbolicModel, case: Case, contender: str) -> int:
    held = memory_of(simulator, case.config(contender), case.prompts()).held
    return held.peak_blocks if held else 0


def _table() -> Table:
    table = Table(box=None)
    for column in ("prompt", "batch"):
        table.add_column(column, justify="right")
    table.add_column("shared")
    for column in ("tokens/s", "tokens/cpu s", "x cpu", "blocks held", "MiB", "of off"):
        table.add_column(column, justify="right")
    return table


def _row(
    case: Case, name: str, times: dict[str, Clocks], held: dict[str, int], block_bytes: int
) -> list[str]:
    """`x cpu`: throughput by processor time, in terms of sharing off."""
    new = case.batch * NEW_TOKENS
    speed = ["", "", ""]
    if times:
        took = times[name]
        speed = [
            f"{new / took.seconds:.1f}",
            f"{new / took.processor:.1f}",
            f"{times['off'].processor / took.processor:.2f}",
        ]
    size = held[name] * block_bytes / 2**20
    memory = [f"{held[name]:,}", f"{size:.1f}", f"{held[name] / held['off']:.0%}"]
    return [str(case.length), str(case.batch), name, *speed, *memory]


if __name__ == "__main__":
    main()
