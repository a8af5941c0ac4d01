"""`kvrewind info`: what a trace is of, what is in it, and what its KV cache took."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.table import Table

from ...recorder.errors import BadInput
from ...recorder.events import RequestAdded, RequestFinished, RunStarted
from ...recorder.reader import TraceReader
from ...replay.memory_account import MemoryAccount
from ...replay.memory_report import Ask, Memory
from ..console import out, print_json
from ..options import Format, MaybeCount
from ..presenters.memory import Grid, contiguous, costs, fragmentation, use


def info(
    trace: Path,
    /,
    *,
    requests: MaybeCount = None,
    length: MaybeCount = None,
    context: MaybeCount = None,
    format: Format = "text",
) -> int:
    """Show a trace's header, counts and size, whether it is whole, and its memory account.

    The account says what the KV cache takes for a token, a block and a request, how the pool was
    used, and what contiguous allocation would have taken for the same run.

    For example:

        kvrewind info leak.kvtrace

        kvrewind info leak.kvtrace --requests 16 --length 2048

    Parameters
    ----------
    trace
        A .kvtrace file.
    requests
        How many requests to work out the memory of; the run's max_num_seqs when not given.
    length
        Of how many tokens each; the run's longest when not given.
    context
        The model's context in tokens, where the trace doesn't tell it.
    format
        text, or json: one JSON value and nothing else.
    """
    for option, given in (("requests", requests), ("length", length), ("context", context)):
        if given is not None and given < 1:
            raise BadInput(f"--{option} must be at least 1, not {given}")
    with TraceReader(trace) as reader:
        facts, account = _facts(reader)
    memory = account.report(Ask(requests=requests, length=length, context=context))
    if format == "json":
        print_json(facts | {"memory": memory.plain()})
        return 0
    _print_facts([(name, _shown(value)) for name, value in facts.items()])
    _print_memory(memory)
    return 0


def _facts(reader: TraceReader) -> tuple[dict[str, object], MemoryAccount]:
    kinds = Counter[str]()
    account = MemoryAccount()
    requests = finished = last_step = 0
    for envelope in reader.envelopes():
        kinds[envelope.kind] += 1
        last_step = max(last_step, envelope.step)
        requests += isinstance(envelope.event, RequestAdded)
        finished += isinstance(envelope.event, RequestFinished)
        account.see(envelope)
    facts = {
        "trace": str(reader.path),
        "bytes": reader.size,
        "complete": reader.complete,
        "problems": list(reader.problems),
        **_header(reader.run),
        "steps": last_step,
        "requests": requests,
        "finished": finished,
        "events": kinds.total(),
        "kinds": dict(kinds.most_common()),
    }
    return facts, account


def _header(run: RunStarted | None) -> dict[str, object]:
    if run is None:
        return {"engine": None}
    return {
        "engine": f"{run.engine} {run.engine_version}",
        "model": run.model,
        "model_digest": run.model_digest,
        "dtype": run.dtype,
        "device": run.device,
        "started": run.wall_clock,
        "pool": f"{run.num_blocks} blocks of {run.block_size} tokens",
        "config": run.config,
        "versions": run.versions,
    }


def _print_facts(facts: list[tuple[str, str]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    out().print(table, markup=False)


def _print_memory(memory: Memory) -> None:
    out().print("\nmemory of the KV cache", style="bold")
    _print_facts(costs(memory))
    for part in (use(memory), fragmentation(memory), contiguous(memory)):
        if part is not None:
            out().print()
            _print_part(part)
    if memory.missing:
        out().print()
    for sentence in memory.missing:
        out().print(f"not told: {sentence}", markup=False, style="dim")


def _print_part(part: Grid | str) -> None:
    if isinstance(part, str):
        out().print(part, markup=False)
        return
    out().print(part.title, markup=False)
    out().print(_table(part), markup=False)


def _table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(grid.headings):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    return table


def _shown(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{k} {v}" for k, v in value.items())
        case list():
            return "; ".join(map(str, value)) or "none"
        case bool():
            return "yes" if value else "no"
        case None:
            return "unknown"
        case _:
            return str(value)
