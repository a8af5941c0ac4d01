"""`kvrewind info`: what a trace is of, and what is in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.table import Table

from ...recorder.events import RequestAdded, RequestFinished, RunStarted
from ...recorder.reader import TraceReader
from ..console import out, print_json
from ..options import Format


def info(trace: Path, /, *, format: Format = "text") -> int:
    """Show a trace's header, counts and size, and whether it is whole.

    For example:

        kvrewind info leak.kvtrace

    Parameters
    ----------
    trace
        A .kvtrace file.
    format
        text, or json: one JSON value and nothing else.
    """
    with TraceReader(trace) as reader:
        facts = _facts(reader)
    if format == "json":
        print_json(facts)
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, _shown(value))
    out().print(table, markup=False)
    return 0


def _facts(reader: TraceReader) -> dict[str, object]:
    kinds = Counter[str]()
    requests = finished = last_step = 0
    for envelope in reader.envelopes():
        kinds[envelope.kind] += 1
        last_step = max(last_step, envelope.step)
        requests += isinstance(envelope.event, RequestAdded)
        finished += isinstance(envelope.event, RequestFinished)
    return {
        "trace": str(reader.path),
        "bytes": reader.path.stat().st_size,
        "complete": reader.complete,
        "problems": list(reader.problems),
        **_header(reader.run),
        "steps": last_step,
        "requests": requests,
        "finished": finished,
        "events": kinds.total(),
        "kinds": dict(kinds.most_common()),
    }


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
