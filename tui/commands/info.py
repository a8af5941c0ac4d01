"""`kvrewind info`: what a trace is of, what is in it, what is wrong, and what its cache took."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ...recorder.errors import BadInput
from ...recorder.reader import TraceReader
from ...replay.memory_account import MemoryAccount
from ...replay.memory_report import Ask, Memory
from ...replay.summary import Summary
from ..console import out, print_json
from ..options import Format, MaybeCount, Trace
from ..presenters.memory import Grid, contiguous, costs, fragmentation, use
from ..presenters.trace_facts import facts_of, rows_of


def info(
    trace: Trace,
    /,
    *,
    requests: MaybeCount = None,
    length: MaybeCount = None,
    context: MaybeCount = None,
    check: bool = True,
    format: Format = "text",
) -> int:
    """Show a trace's header, counts and sizes, whether it is whole, what the checks find, and its
    memory account.

    A trace that is damaged, or still written, is told of as far as it goes. The account says what
    the KV cache takes for a token, a block and a request, how the pool was used, and what
    contiguous allocation would have taken for the same run.

    For example:

        kvrewind info leak.kvtrace

        kvrewind info leak.kvtrace --requests 16 --length 2048

    Parameters
    ----------
    trace
        A .kvtrace file, or the URL of a run in a database.
    requests
        How many requests to work out the memory of; the run's max_num_seqs when not given.
    length
        Of how many tokens each; the run's longest when not given.
    context
        The model's context in tokens, where the trace doesn't tell it.
    check
        Say what the checks find so far; --no-check skips them, which a long trace takes time for.
    format
        text, or json: one JSON value and nothing else.
    """
    for option, given in (("requests", requests), ("length", length), ("context", context)):
        if given is not None and given < 1:
            raise BadInput(f"--{option} must be at least 1, not {given}")
    with TraceReader(trace) as reader:
        problems = list(reader.problems)  # which also finds damage, before anything else meets it
        facts, account = _seen(reader, check, problems)
    memory = account.report(Ask(requests=requests, length=length, context=context))
    if format == "json":
        print_json(facts | {"memory": memory.plain()})
        return 0
    _print_facts(rows_of(facts))
    _print_memory(memory)
    return 0


def _seen(
    reader: TraceReader, check: bool, problems: list[str]
) -> tuple[dict[str, Any], MemoryAccount]:
    account, summary = MemoryAccount(), Summary(check=check)
    for envelope in reader.envelopes():
        account.see(envelope)
        summary.see(envelope)
    return facts_of(reader, summary, reader.storage(), problems), account


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
