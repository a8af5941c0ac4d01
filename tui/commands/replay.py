"""`kvrewind replay`: the recorded inputs through the same engine again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from ...engine.llm import Model
from ...recorder.events import Envelope, RequestAdded, RunEnded, TokensSampled
from ...recorder.jsonl import to_line
from ...recorder.reader import TraceReader
from ...recorder.redaction import is_redacted
from ...recorder.writer import TraceWriter
from ...replay.check import check
from ...replay.recording import OWN_ENDS, NotReexecutable, Recording
from ...replay.reexecute import Divergence, Reexecutor, Rerun, first_divergence
from ...replay.retold import model_of
from ..console import out, say
from ..options import ChangedSwitches, Trace, given
from ..outputs import require_output
from ..traces import read_all

DIVERGED = 3
_PASSED_OVER = ("seq", "t_ns", "wall_clock", "versions")
"""Fields in which two equal events may differ."""


def replay(
    trace: Trace,
    /,
    *,
    verify: Literal["events", "bits"] | None = None,
    force_tokens: Annotated[bool, Parameter(negative=())] = False,
    only: str | None = None,
    model: str | None = None,
    output: Annotated[Path | None, Parameter(name="--out")] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    switches: ChangedSwitches = ChangedSwitches(),  # noqa: B008  # pyright: ignore[reportInvalidTypeForm]
) -> int:
    """Re-execute a recorded run, as it was or under other switches.

    Without switches the stream of events must be the recorded one; the first divergence is shown
    with both events (exit status 3). With switches, or one request alone, the answers and the
    verdict of the new run are shown. Of a redacted run, no model can read the tokens: each request
    says what it said then.

    For example:

        kvrewind replay leak.kvtrace --verify

        kvrewind replay leak.kvtrace --only r1

        kvrewind replay leak.kvtrace --no-prefix-cache

    Parameters
    ----------
    trace
        A .kvtrace file that kvrewind recorded, or the URL of a run in a database.
    verify
        Compare event by event; --verify=bits compares the floats as well.
    force_tokens
        Feed the recorded tokens, so that the schedule stays while numerics may drift.
    only
        Run this request alone.
    model
        Where the recorded model lies now, if not where it was.
    output
        Write the new run's events to this trace.
    force
        Write over an existing trace.
    """
    if output is not None:
        require_output(output, [trace], force=force)
    with TraceReader(trace) as reader:
        recorded = read_all(reader)
    recording = Recording.of(recorded)
    changes = given(switches)
    if verify == "bits" and is_redacted(recording.header):
        raise NotReexecutable(
            f"{trace} is redacted, so that nothing can be computed again whose bits could be "
            "compared; use --verify."
        )
    is_compared = verify is not None or not (changes or only)
    if is_compared and recording.has_gaps:
        raise NotReexecutable(
            f"{trace} is a ring, or events of it were dropped: a run again can't be compared with "
            "it; check it, or run one request alone with --only"
        )
    loaded = model_of(recording, model)
    executor = Reexecutor(recording, loaded)
    tell_versions(executor)
    rerun = executor.run(changes, only=only, force_tokens=force_tokens)
    if output is not None:
        _save(rerun, output, force)
    if not is_compared:
        return _show(rerun, loaded)
    return _compare(recorded, rerun, bits=verify == "bits")


def tell_versions(executor: Reexecutor) -> None:
    """Other versions may sample other tokens, which is nobody's leak."""
    if is_redacted(executor.recording.header):
        say("note: the trace is redacted; each request says what it said when it was recorded")
    if others := executor.other_versions():
        say(f"note: recorded with {', '.join(others)}; if it diverges, try --force-tokens")


def _save(rerun: Rerun, path: Path, force: bool) -> None:
    with TraceWriter(path, force=force) as writer:
        writer.write_envelopes(rerun.envelopes)
    say(f"{path}: {len(rerun.envelopes)} events")


def _compare(recorded: list[Envelope], rerun: Rerun, *, bits: bool) -> int:
    """A trace that was cut short is compared as far as it goes."""
    end = recorded[-1].event if recorded else None
    cut = not isinstance(end, RunEnded) or end.reason not in OWN_ENDS
    if isinstance(end, RunEnded) and cut:  # by a finding: no decision of the engine's
        recorded = recorded[:-1]
    replayed = rerun.envelopes[: len(recorded)] if cut else rerun.envelopes
    divergence = first_divergence(recorded, replayed, bits=bits)
    if divergence is None:
        what = "bit for bit" if bits else "event for event"
        end = ", as far as it was recorded" if cut else ""
        out().print(f"identical {what}{end}: {recorded[-1].step} steps, {len(recorded)} events")
        return 0
    _print_divergence(divergence)
    return DIVERGED


def _print_divergence(divergence: Divergence) -> None:
    first = divergence.recorded or divergence.replayed
    out().print(f"diverged at {first.position if first else 'the end'}")
    if divergence.recorded is not None and divergence.replayed is not None:
        for line in _differences(divergence.recorded, divergence.replayed):
            out().print(f"  {line}", markup=False, soft_wrap=True)
    for name, envelope in (("recorded", divergence.recorded), ("replayed", divergence.replayed)):
        text = to_line(envelope) if envelope else "(ended before)"
        out().print(f"  {name}  {text}", markup=False, soft_wrap=True)


def _differences(recorded: Envelope, replayed: Envelope) -> Iterator[str]:
    """Field by field; the switches of the configuration count as fields."""
    ours, theirs = (_fields(json.loads(to_line(e))) for e in (recorded, replayed))
    for name in ours | theirs:
        if name not in _PASSED_OVER and ours.get(name) != theirs.get(name):
            yield f"{name}: recorded {_short(ours.get(name))}, replayed {_short(theirs.get(name))}"


def _fields(line: dict[str, Any]) -> dict[str, Any]:
    config = line.get("config") or {}
    return {k: v for k, v in line.items() if k != "config"} | {
        f"config.{name}": value for name, value in config.items()
    }


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _show(rerun: Rerun, model: Model) -> int:
    report = check(rerun.envelopes)
    table = Table(box=None, pad_edge=False)
    table.add_column("request")
    table.add_column("answer", overflow="fold")
    for name, tokens in answers(rerun.envelopes).items():
        table.add_row(name, model.decode(tokens))
    out().print(table, markup=False)
    verdict = report.verdict if rerun.finished else "did-not-finish"
    out().print(f"verdict: {verdict}")
    return 0


def answers(envelopes: list[Envelope]) -> dict[str, list[int]]:
    """The sampled tokens of each request, in the order of arrival."""
    said: dict[str, list[int]] = {}
    for envelope in envelopes:
        match envelope.event:
            case RequestAdded() as event:
                said[event.request] = []
            case TokensSampled() as event:
                for request, token in zip(event.requests, event.tokens, strict=True):
                    said[request].append(token)
    return said
