"""`kvrewind merge`: the traces of several ranks as one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...recorder.errors import BadInput, KvrewindError
from ...recorder.reader import TraceReader
from ...recorder.writer import TraceWriter
from ...replay.merge import Merged
from ...replay.merge import merge as merge_traces
from ..console import say
from ..options import Trace
from ..outputs import require_output

NAMES_SHOWN = 4


def merge(
    *traces: Trace,
    output: Annotated[Path, Parameter(name="--out")],
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Make one trace of several processes' or ranks' traces.

    Events are put in the order of their wall time, and each trace becomes a rank: with blocks of
    its own, judged by itself. A request id that several ranks have stays if all of them were given
    the same request; otherwise it becomes id@rank in all ranks but the first.

    For example:

        kvrewind merge rank0.kvtrace rank1.kvtrace --out both.kvtrace

    Parameters
    ----------
    traces
        Two or more traces of one model and block size: .kvtrace files, or URLs of runs.
    output
        The trace to write.
    force
        Write over an existing trace.
    """
    if len(traces) < 2:
        raise BadInput("merge takes two traces or more")
    require_output(output, traces, force=force)
    with ExitStack() as opened:
        readers = [opened.enter_context(TraceReader(trace)) for trace in traces]
        merged = merge_traces(readers)
        _say_what(merged)
        writer = TraceWriter(output, force=force)
        try:
            with writer:
                writer.write_envelopes(merged.envelopes())
        except KvrewindError:  # of what is read: half a trace is no use
            output.unlink(missing_ok=True)
            raise
    if writer.failure is not None:
        raise writer.failure
    say(f"{output}: {writer.events} events of {_count(merged)} ranks")
    return 0


def _count(merged: Merged) -> int:
    return sum(len(part.ranks) for part in merged.inputs)


def _say_what(merged: Merged) -> None:
    for part in merged.inputs:
        ranks = ", ".join(map(str, part.ranks.values())) or "none"
        say(f"rank {ranks}: {part.source.path}, {part.source.count} events")
        for remark in part.remarks:
            say(f"{part.source.path}: {remark}")
    new: dict[int, list[str]] = {}
    for (rank, request), name in merged.renamed.items():
        new.setdefault(rank, []).append(f"{request} is now {name}")
    for rank, names in new.items():
        more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        say(
            f"rank {rank}: another rank has other requests of the same name: "
            f"{', '.join(names[:NAMES_SHOWN])}{more}"
        )
