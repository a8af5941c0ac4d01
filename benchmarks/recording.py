"""What recording costs: rate, room, and a share of the step time of a model on the CPU.

    python benchmarks/recording.py [--threads N] [--pairs N] [--no-model]

1. How many events a second the recorder stores, and whether it keeps up with the simulator.
2. Bytes that a generated token takes, at 32 rows and two contexts; what the prompts take is left
   out, by comparing two lengths of the answers.
3. SmolLM2-135M, float32, the 16 requests of `serving.py`: decode steps without and with a
   recording take turns, in an order that is drawn; the difference of each pair counts. Times are of
   the processor, all threads together, so that other work on the machine counts less.
4. The same without and with sanitizer mode: digests of cached blocks, freed blocks filled with NaN.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.garbage import rarely_collected
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.models import LoadedModel, load_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import synthetic_tokens
from kvrewind.recorder import schema
from kvrewind.recorder.digest import by_step
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.sink import NullSink, Sink
from kvrewind.recorder.step_encoder import StepEncoder, rows_of
from kvrewind.recorder.stores.sqlite_file import SqliteFile
from kvrewind.recorder.writer import TraceWriter
from measuring import machine
from rich.console import Console
from rich.table import Table
from serving import CONFIG, prompts

BLOCK_SIZE = 16
ROWS = 32
CONTEXTS = (128, 4096)
SHORT, LONG = 32, 160
"""Lengths of the answers that are compared for the bytes of a token."""
RESAMPLED = 2_000
SANITIZED = {"digests": True, "scrub": "nan"}
STEPS_A_COMMIT = 20

Folder = Path


class Cost(NamedTuple):
    """A ratio of two kinds of steps, less one, with its 95 % interval."""

    share: float
    low: float
    high: float
    seconds_off: float
    seconds_more: float


# --- rates ----------------------------------------------------------------------------------------


def simulated(rows: int, context: int, new_tokens: int, sink: Sink) -> Engine:
    asked = [
        Prompt(
            request=f"r{i}",
            prompt_tokens=tuple(synthetic_tokens(f"own {i}", context)),
            max_new_tokens=new_tokens,
            ignore_eos=True,
        )
        for i in range(rows)
    ]
    blocks = rows * (-(-(context + new_tokens) // BLOCK_SIZE) + 1)
    config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=blocks, max_num_seqs=rows)
    engine = make_engine(SymbolicModel(), config, asked, sink, define_pieces=False)
    with rarely_collected():
        engine.run()
    return engine


def rates(folder: Folder) -> Table:
    table = Table("storing events", "events", "events/s", "events/cpu s", box=None, pad_edge=False)
    for rows in (4, ROWS):
        sink = MemorySink()
        simulated(rows, 64, 1_500 if rows == 4 else 400, sink)
        events = sink.envelopes
        for what, work in (
            ("rows into SQLite alone", _insert(events, folder / f"rows-{rows}.kvtrace")),
            ("encode, digest, index, store", _write(events, folder / f"all-{rows}.kvtrace")),
        ):
            seconds, processor = _timed(work)
            table.add_row(
                f"{what}, {rows} requests a step", str(len(events)),
                f"{len(events) / seconds:,.0f}", f"{len(events) / processor:,.0f}",
            )  # fmt: skip
    return table


def _insert(events: Sequence[Envelope], path: Path) -> Callable[[], None]:
    encoder = StepEncoder()
    steps = [encoder.encode(step, group) for step, group in by_step(events)]
    store = SqliteFile(path, force=False)

    def insert() -> None:
        for at in range(0, len(steps), STEPS_A_COMMIT):
            for table, rows in rows_of(steps[at : at + STEPS_A_COMMIT]):
                if table is not schema.header:
                    store.add(table, rows)
            store.commit()
        store.finish()
        store.close()

    return insert


def _write(events: Sequence[Envelope], path: Path) -> Callable[[], None]:
    def write() -> None:
        with TraceWriter(path) as writer:
            writer.write_envelopes(events)
        if writer.failure is not None:
            raise writer.failure

    return write


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    with rarely_collected():
        started, used = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - started, time.process_time() - used


def keeping_up(folder: Folder) -> Table:
    """The queue while the simulator runs as fast as it can, and how long is written after it."""
    table = Table(
        "the simulator", "events/s", "most waiting", "behind at the end", "writing, cpu",
        "waited for it", box=None, pad_edge=False,
    )  # fmt: skip
    for rows in (4, ROWS):
        path = folder / f"simulated-{rows}.kvtrace"
        deepest = 0
        with TraceWriter(path) as writer:

            class Watched:
                def emit(self, event: object, step: int) -> None:
                    nonlocal deepest
                    writer.emit(event, step)  # pyright: ignore
                    deepest = max(deepest, writer.queued_events)

            started = time.perf_counter()
            simulated(rows, 64, 1_500 if rows == 4 else 400, Watched())
            ended = time.perf_counter()
            writer.close()
            behind = time.perf_counter() - ended
        seconds = ended - started
        table.add_row(
            f"{rows} requests a step", f"{writer.events / seconds:,.0f}", f"{deepest} events",
            f"{behind:.2f} s of {seconds:.1f}", f"{writer.busy_s / seconds:.0%}",
            f"{writer.emit_s / seconds:.0%}",
        )  # fmt: skip
    return table


# --- room -----------------------------------------------------------------------------------------


def room(folder: Folder) -> Table:
    table = Table(
        f"bytes a generated token, {ROWS} rows", "events", "indexes", "all of the file",
        box=None, pad_edge=False,
    )  # fmt: skip
    for context in CONTEXTS:
        short, long = (_sizes(folder, context, length) for length in (SHORT, LONG))
        tokens = ROWS * (LONG - SHORT)
        events, indexes, whole = ((b - a) / tokens for a, b in zip(short, long, strict=True))
        table.add_row(f"context of {context}", f"{events:.0f}", f"{indexes:.0f}", f"{whole:.0f}")
    return table


def _sizes(folder: Folder, context: int, new_tokens: int) -> tuple[int, int, int]:
    path = folder / f"room-{context}-{new_tokens}.kvtrace"
    with TraceWriter(path) as writer:
        simulated(ROWS, context, new_tokens, writer)
    with TraceReader(path) as reader:
        sizes = reader.storage().sizes
        if sizes is None or sizes.indexes is None:
            raise SystemExit("this SQLite can't tell what its tables take (no dbstat)")
        return sizes.events, sizes.indexes, reader.size


# --- cost beside a model --------------------------------------------------------------------------


class Side(NamedTuple):
    """One of two engines that take turns."""

    engine: Engine
    seconds: list[float]

    def step(self) -> None:
        started = time.process_time()
        self.engine.advance()
        self.seconds.append(time.process_time() - started)


def side(model: LoadedModel, config: EngineConfig, pairs: int, sink: Sink) -> Side:
    """After the prompts, when a few decode steps have been made."""
    asked = [
        Prompt(
            request=f"r{i}",
            prompt_tokens=tuple(tokens),
            max_new_tokens=pairs + 8,
            ignore_eos=True,
        )
        for i, tokens in enumerate(prompts(model))
    ]
    engine = make_engine(model, config, asked, sink)
    for _ in range(5):
        engine.advance()
    return Side(engine, [])


def taking_turns(off: Side, on: Side, pairs: int) -> Cost:
    rng = Random(0)
    with rarely_collected():
        for _ in range(pairs):
            first, second = (off, on) if rng.random() < 0.5 else (on, off)
            first.step()
            second.step()
    return cost_of(off.seconds, on.seconds)


def cost_of(off: Sequence[float], on: Sequence[float]) -> Cost:
    """By the mean of the pairs' differences, the tenth at either end left out: other work on the
    machine makes some steps far longer. The interval is of resampled pairs."""
    rng = Random(1)
    differences = [b - a for a, b in zip(off, on, strict=True)]
    base = _trimmed_mean(off)
    means = sorted(
        _trimmed_mean(rng.choices(differences, k=len(differences))) / base for _ in range(RESAMPLED)
    )
    more = _trimmed_mean(differences)
    low, high = means[RESAMPLED // 40], means[-RESAMPLED // 40]
    return Cost(more / base, low, high, base, more)


def _trimmed_mean(values: Sequence[float]) -> float:
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def beside_a_model(model: LoadedModel, pairs: int, folder: Folder) -> Table:
    table = Table(
        "SmolLM2, decode steps of 16 rows", "step, cpu ms", "more", "95 % interval",
        "us an event", "events a step", box=None, pad_edge=False,
    )  # fmt: skip
    config = replace(CONFIG, num_blocks=16 * ((100 + pairs + 16) // BLOCK_SIZE + 2))
    with TraceWriter(folder / "model.kvtrace") as writer:
        off = side(model, config, pairs, NullSink())
        on = side(model, config, pairs, writer)
        before, busy = writer.events, writer.busy_s
        cost = taking_turns(off, on, pairs)
        events = (writer.events - before) / pairs
        own = (writer.busy_s - busy) / pairs
    table.add_row("recording off", f"{1e3 * cost.seconds_off:.1f}", "", "", "", "")
    table.add_row(
        "recording on, by the difference", f"{1e3 * (cost.seconds_off + cost.seconds_more):.1f}",
        f"{cost.share:.2%}", f"{cost.low:.2%} to {cost.high:.2%}",
        f"{1e6 * cost.seconds_more / events:.0f}", f"{events:.1f}",
    )  # fmt: skip
    table.add_row(
        "of it the writer's thread", "", f"{own / cost.seconds_off:.2%}", "",
        f"{1e6 * own / events:.0f}", "",
    )  # fmt: skip
    return table


def sanitized(model: LoadedModel, pairs: int, folder: Folder) -> Table:
    table = Table(
        "sanitizer mode, recorded too", "step, cpu ms", "x", "95 % interval",
        box=None, pad_edge=False,
    )  # fmt: skip
    config = replace(CONFIG, num_blocks=16 * ((100 + pairs + 16) // BLOCK_SIZE + 2))
    with TraceWriter(folder / "sanitized.kvtrace") as writer:
        off = side(model, config, pairs, NullSink())
        on = side(model, replace(config, **SANITIZED), pairs, writer)
        cost = taking_turns(off, on, pairs)
    table.add_row("off, not recorded", f"{1e3 * cost.seconds_off:.1f}", "1.00", "")
    table.add_row(
        ", ".join(f"{name} {value}" for name, value in SANITIZED.items()),
        f"{1e3 * (cost.seconds_off + cost.seconds_more):.1f}",
        f"{1 + cost.share:.3f}", f"{1 + cost.low:.3f} to {1 + cost.high:.3f}",
    )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=120, help="of decode steps")
    parser.add_argument("--no-model", action="store_true", help="leave out what needs SmolLM2")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=110, highlight=False)
    console.print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables: list[Callable[[], Table]] = [
            lambda: rates(folder), lambda: keeping_up(folder), lambda: room(folder)
        ]  # fmt: skip
        if not options.no_model:
            model = load_model("smollm2", CONFIG)
            tables.append(lambda: beside_a_model(model, options.pairs, folder))
            tables.append(lambda: sanitized(model, options.pairs, folder))
        for table in tables:
            console.print()
            console.print(table())


if __name__ == "__main__":
    main()
