"""`kvrewind bisect`: the one decision that allowed it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...recorder.errors import BadInput
from ...recorder.events import Envelope, RequestAdded
from ...recorder.reader import TraceReader
from ...replay.bisect import Bisection, Culprit
from ...replay.bisect import bisect as search
from ...replay.recording import Recording
from ...replay.reexecute import Reexecutor
from ...replay.retold import model_of
from ..console import err, out, print_json
from ..options import Format, Trace
from ..traces import read_all
from .replay import tell_versions


def bisect(
    trace: Trace,
    /,
    *,
    victim: str | None = None,
    model: str | None = None,
    format: Format = "text",
) -> int:
    """Find the decision without which the run is clean.

    Confirms the failure, toggles the switches one at a time, then searches the decisions; every
    trial runs twice. Of a redacted run, each request says in every trial what it said when it was
    recorded. Exit status: 0 nothing to blame, 1 culprit found, 4 unstable.

    For example:

        kvrewind bisect leak.kvtrace

    Parameters
    ----------
    trace
        A .kvtrace file that kvrewind recorded, or the URL of a run in a database.
    victim
        Only what this request read.
    model
        Where the recorded model lies now, if not where it was.
    format
        text, or json: one JSON value and nothing else.
    """
    with TraceReader(trace) as reader:
        envelopes = read_all(reader)
    recording = Recording.of(envelopes)
    if victim is not None:
        _refuse_unknown(victim, envelopes)
    executor = Reexecutor(recording, model_of(recording, model))
    tell_versions(executor)
    with err().status("bisecting") as status:
        found = search(
            envelopes,
            executor,
            victim=victim,
            progress=lambda what: status.update(what),
        )
    if format == "json":
        print_json(found.to_json())
    else:
        out().print(notebook(found))
    return found.exit_status


def _refuse_unknown(victim: str, envelopes: Sequence[Envelope]) -> None:
    names = [e.event.request for e in envelopes if isinstance(e.event, RequestAdded)]
    if victim not in names:
        raise BadInput(f"the trace has no request {victim!r}; it has {', '.join(names)}")


def notebook(found: Bisection) -> RenderableType:
    """The bisection as a laboratory notebook: toggles, search, and what it names."""
    if found.remark is not None and not found.culprits:
        return Text(found.remark)
    return Group(_toggles(found), Text(), *_search(found))


def _toggles(found: Bisection) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run")
    table.add_column("verdict")
    table.add_row("as recorded", _coloured(found.verdict))
    for toggle in found.toggles:
        table.add_row(toggle.switch, _coloured(toggle.verdict))
    table.add_row("every decision by reference", _coloured("clean"))
    return table


def _search(found: Bisection) -> list[Text]:
    lines = [
        Text("A toggle hints and can mislead; the search decides.", style="dim"),
        Text(
            f"{found.differing} of {found.decisions} decisions have another right answer; "
            f"{found.trials} trials, {found.runs} runs."
        ),
    ]
    lines += [_culprit(culprit) for culprit in found.culprits]
    if found.agrees_with_provenance is not None:
        agrees = "agrees" if found.agrees_with_provenance else "DISAGREES"
        lines.append(Text(f"The provenance chain {agrees}."))
    return lines


def _culprit(culprit: Culprit) -> Text:
    text = Text("culprit: ", style="bold")
    where = culprit.carrier.position if culprit.carrier else "no event carries it out"
    kind = f" ({culprit.carrier.kind})" if culprit.carrier else ""
    text.append(f"{culprit.id}", style="bold red")
    text.append(f" at {where}{kind}", style="bold")
    if culprit.also:
        text.append(f", and {culprit.also} more of its kind", style="not bold")
    return text


def _coloured(verdict: str) -> Text:
    styles = {"clean": "green", "contaminated": "bold red", "violated": "red"}
    return Text(verdict, style=styles.get(verdict, "yellow"))
