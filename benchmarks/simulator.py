"""Tokens per second of the simulator on one core, with and without recording.

    python benchmarks/simulator.py [--repeats N] [--new-tokens N]

Each case hands in as many requests as it has rows, all at once: prompts of the given length, half
of it equal, and as many new tokens each as asked for. Timed is the whole run, admission, prefill
and release included; *generated* tokens are counted. The process is kept on one core, which the
recorder's thread shares. The best of the repeats counts, and the cases take turns, so that a busy
minute hits all of them; on a machine with other work compare processor time.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.garbage import rarely_collected
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.engine.workloads.tokens import synthetic_tokens
from kvrewind.recorder.sink import NullSink, Sink
from kvrewind.recorder.writer import TraceWriter
from rich.console import Console
from rich.table import Table

ROWS = (1, 8, 32)
PROMPTS = (64, 512)
BLOCK_SIZE = 16


class Case(NamedTuple):
    rows: int
    prompt: int
    recording: bool


class Result(NamedTuple):
    """Of one run. `processor`: seconds, of all threads; `bytes`: of the trace."""

    tokens: int
    seconds: float
    processor: float
    bytes: int = 0


def prompts(case: Case, new_tokens: int) -> list[Prompt]:
    shared = synthetic_tokens("shared", case.prompt // 2)
    return [
        Prompt(
            request=f"r{i}",
            prompt_tokens=(*shared, *synthetic_tokens(f"own {i}", case.prompt - len(shared))),
            max_new_tokens=new_tokens,
            ignore_eos=True,
        )
        for i in range(case.rows)
    ]


def run(case: Case, new_tokens: int) -> Result:
    blocks = -(-(case.prompt + new_tokens) // BLOCK_SIZE)
    config = EngineConfig(
        block_size=BLOCK_SIZE, num_blocks=case.rows * blocks, max_num_seqs=case.rows
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        trace = Path(folder) / "run.kvtrace"
        sink: Sink = closing.enter_context(TraceWriter(trace)) if case.recording else NullSink()
        given = prompts(case, new_tokens)
        engine = make_engine(SymbolicModel(), config, given, sink, define_pieces=case.recording)
        seconds, processor = timed(lambda: (engine.run(), closing.close()))
        tokens = sum(request.num_sampled for request in engine.requests.values())
        return Result(tokens, seconds, processor, trace.stat().st_size if case.recording else 0)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the wall and of the processor."""
    with rarely_collected():
        started, used = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - started, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second of the simulator.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=512)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cases = [Case(r, p, recording) for p in PROMPTS for r in ROWS for recording in (False, True)]
    results = {case: [] for case in cases}
    for _ in range(given.repeats):
        for case in cases:
            results[case].append(run(case, given.new_tokens))
    show(results, given.new_tokens, given.repeats)


def show(results: dict[Case, list[Result]], new_tokens: int, repeats: int) -> None:
    table = Table(
        title=f"simulator, one core of {_processor()}; python {platform.python_version()}, "
        f"numpy {np.__version__}, sqlite {sqlite3.sqlite_version}; {new_tokens} new tokens a "
        f"request, blocks of {BLOCK_SIZE}; best of {repeats}",
        title_justify="left",
        box=None,
    )
    for column in ("prompt", "rows", "recording", "tokens/s", "tokens/cpu s", "bytes/token"):
        table.add_column(column, justify="right")
    for case, runs in results.items():
        table.add_row(
            str(case.prompt),
            str(case.rows),
            "on" if case.recording else "off",
            f"{max(r.tokens / r.seconds for r in runs):,.0f}",
            f"{max(r.tokens / r.processor for r in runs):,.0f}",
            f"{runs[0].bytes / runs[0].tokens:.0f}" if case.recording else "",
        )
    Console(width=110).print(table)


def _processor() -> str:
    """As Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), "?")


if __name__ == "__main__":
    main()
