"""`kvrewind tail`: what a run does, while it does it."""

from __future__ import annotations

import math
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...recorder.digest import by_step
from ...recorder.errors import BadInput
from ...recorder.events import Envelope, SpanDropped
from ...recorder.follow import LOOK_EVERY_S, End, Follower
from ...recorder.reader import TraceReader
from ...recorder.stores.address import Place
from ...replay.timeline import Timeline
from ..console import say
from ..following import FOUND, Checking, EventLines, JsonLines, Output, StepLines
from ..options import Format, MaybeCount, Trace
from ..presenters.listing import kinds_of
from ..presenters.wanted import Wanted

INCOMPLETE = 4


def tail(
    trace: Trace,
    /,
    *,
    events: Annotated[bool, Parameter(negative=())] = False,
    kind: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    request: str | None = None,
    block: MaybeCount = None,
    position: Annotated[str | None, Parameter(name="--from")] = None,
    last: MaybeCount = None,
    check: Annotated[bool, Parameter(negative=())] = False,
    wait: Annotated[bool, Parameter(negative=())] = False,
    idle: float | None = None,
    format: Format = "text",
) -> int:
    """Follow a trace while it is being written: a line a step, as soon as it is committed.

    Ends when the run ends. The writer is never kept waiting.

    Exit status: 0 the run ended, 1 --check found something, 4 the trace stopped before the run's
    end (its writer is gone, the file was removed, replaced or damaged, or nothing came for --idle
    seconds), 130 interrupted.

    For example:

        kvrewind tail run.kvtrace

        kvrewind tail run.kvtrace --check --last 10

        kvrewind tail run.kvtrace --request r3

        kvrewind tail run.kvtrace --format json > run.jsonl

    Parameters
    ----------
    trace
        A .kvtrace file, which `kvrewind record` makes when the run begins; or the URL of a run in
        a database.
    events
        A line an event instead of a line a step.
    kind
        Only events of these kinds, as in BlockShared,BlockFreed; may be repeated.
    request
        Only events that name this request.
    block
        Only events that name this block, read it through a table, or write into it.
    position
        Begin at this event: `step:seq`, an event number, or `step:`; the beginning when not given.
    last
        Begin that many steps before the present end.
    check
        Judge each step by the rules of `kvrewind check`, and tell findings as they are made.
    wait
        Wait for a file that isn't there yet.
    idle
        Give up when nothing was added for that many seconds; never, when not given.
    format
        text, or json: each event as a line of JSON, which `kvrewind import` takes again.
    """
    kinds = kinds_of(kind, "--kind") or None
    _refuse_bad_numbers(last, idle, block)
    if position is not None and last is not None:
        raise BadInput("--from and --last both say where to begin; give one of them")
    _await(trace, wait)
    wanted = Wanted(kinds, request, block)
    output = _output(wanted, events, format)
    with TraceReader(trace) as reader:
        start = _start(reader, position, last)
        output.prepare(reader, start)
    checking = Checking() if check else None
    follower = Follower(trace, 0 if check else start, idle_s=idle)
    end = _follow(follower, start, output, checking)
    say(_END[end].format(trace=trace, step=output.last_step or 0, idle=idle))
    problems = _problems(follower, end)
    for problem in problems:
        say(f"{trace}: {problem}")
    if checking is not None and checking.ended():
        say(f"next: {shlex.join(['kvrewind', 'check', str(trace)])}")
        return FOUND
    return 0 if end == "ended" and not problems else INCOMPLETE


_END: dict[End, str] = {
    "ended": "{trace}: the run ended in step {step}",
    "abandoned": "{trace}: nobody writes it any more, and the run did not end; "
    "it is valid up to its last step, {step}",
    "silent": "{trace}: nothing was added for {idle:g} s after step {step}",
    "damaged": "{trace}: what follows step {step} can't be trusted",
    "removed": "{trace} was removed while it was followed; it went up to step {step}",
    "replaced": "{trace} was replaced by another file while it was followed, after step {step}",
}


def _problems(follower: Follower, end: End) -> list[str]:
    """What is wrong with a recording as a whole, which step by step nobody sees.

    One that was read as it was written is not read again.
    """
    if end == "damaged":
        return [follower.problem] if follower.problem else []
    if end != "ended" or follower.was_live:
        return []
    with TraceReader(follower.path) as reader:
        return reader.problems


def _refuse_bad_numbers(last: int | None, idle: float | None, block: int | None) -> None:
    if block is not None and block < 0:
        raise BadInput(f"--block must be the number of a block, from 0 on, not {block}")
    if last is not None and last < 1:
        raise BadInput(f"--last must be at least 1, not {last}")
    if idle is not None and not 0 < idle < math.inf:
        raise BadInput(f"--idle must be a number of seconds above 0, not {idle:g}")


def _await(trace: Place, wait: bool) -> None:
    if not isinstance(trace, Path) or trace.exists():
        return
    if not wait:
        raise BadInput(
            f"{trace}: there is no such file yet; start the recording first, "
            "or wait for it with --wait"
        )
    say(f"waiting for {trace}")
    while not trace.exists():
        time.sleep(LOOK_EVERY_S)


def _output(wanted: Wanted, events: bool, format: Format) -> Output:
    if format == "json":
        return JsonLines(wanted)
    return EventLines(wanted) if events or not wanted.everything else StepLines()


def _start(reader: TraceReader, position: str | None, last: int | None) -> int:
    if position is not None:
        return Timeline(reader).position(position)
    if last is not None:
        spans = reader.spans()[-last:]
        return min((span.first_seq for span in spans), default=0)
    return 0


def _follow(follower: Follower, start: int, output: Output, checking: Checking | None) -> End:
    """Events before `start` are judged, and not shown."""
    expected: int | None = None
    while True:
        envelopes, end = follower.look()
        if envelopes:
            _tell_gap(expected, envelopes[0])
            expected = envelopes[-1].seq + 1
        for step, group in by_step(envelopes):
            if checking is not None:
                checking.judge(group)
            shown = [envelope for envelope in group if envelope.seq >= start]
            if shown:
                output.show(step, shown, checking.findings if checking else None)
                output.last_step = max(step, output.last_step or 0)
            if checking is not None:
                checking.speak()
        sys.stdout.flush()
        if end is not None:
            return end
        if not envelopes:
            time.sleep(LOOK_EVERY_S)


def _tell_gap(expected: int | None, first: Envelope) -> None:
    """A ring may overtake whoever follows it."""
    if expected is not None and first.seq > expected and not isinstance(first.event, SpanDropped):
        say(
            f"there are no events {expected} to {first.seq - 1}: lost, or dropped by a ring before "
            "they could be read"
        )
