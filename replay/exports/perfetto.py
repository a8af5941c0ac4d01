"""A trace for ui.perfetto.dev and chrome://tracing.

Requests are tracks (waiting, prefill, decode, preempted), steps slices of the engine's track, with
what they scheduled, built, computed and accounted for inside them; transfers are slices that may
overlap; the pool, the queue and the hit rate are counters. Findings are instants, with an arrow
from the decision that allowed each. Two passes, and no event is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple, TextIO

from ...recorder.events import Envelope, RunStarted
from ..findings import Finding
from ..source import EventSource
from ..verdict import Report
from .engine_tracks import EngineTracks
from .request_tracks import RequestTracks
from .survey import Survey
from .trace_events import TraceEvents, Track


def write_perfetto(source: EventSource, stream: TextIO, problems: Sequence[str] = ()) -> Report:
    """Write the JSON; the report whose findings it shows.

    `problems`: what the reader of the trace found missing or damaged.
    """
    survey = Survey(source, problems)
    out = TraceEvents(stream)
    picture = _Picture(out, survey)
    for envelope in source.envelopes():
        picture.see(envelope)
    picture.close()
    return survey.report


class _Mark(NamedTuple):
    """A finding at one of its two events; the number is that of its arrow."""

    number: int
    finding: Finding


class _Picture:
    def __init__(self, out: TraceEvents, survey: Survey) -> None:
        self._out = out
        self._survey = survey
        self._requests = RequestTracks(out)
        self._engine = EngineTracks(out, survey)
        self._culprits: dict[int, list[_Mark]] = {}
        self._shown: dict[int, list[_Mark]] = {}
        self._arrows: set[int] = set()
        """Numbers of those that have begun; what belongs to no step has no slice to begin in."""
        self._header: RunStarted | None = None
        self._events = 0
        self._ts = 0.0
        for number, finding in enumerate(survey.report.findings, start=1):
            self._shown.setdefault(finding.seq, []).append(_Mark(number, finding))
            if finding.culprit_seq is not None:
                self._culprits.setdefault(finding.culprit_seq, []).append(_Mark(number, finding))

    def see(self, envelope: Envelope) -> None:
        if self._header is None and isinstance(envelope.event, RunStarted):
            self._header = envelope.event
        self._events += 1
        ts = self._survey.clock.of(envelope)
        self._ts = max(self._ts, ts)
        marked = envelope.seq in self._culprits or envelope.seq in self._shown
        before = self._tracks_now(envelope) if marked else {}
        self._engine.see(envelope, ts)
        self._requests.see(envelope, ts)
        if marked:
            self._mark(envelope, ts, before | self._tracks_now(envelope))
        if self._engine.at_end_of_step(envelope):
            counted = self._requests.waiting_and_running(envelope.rank)
            self._engine.counters(envelope.rank, counted, ts)

    def close(self) -> None:
        self._requests.close(self._ts, {"ends": "the trace ends here"})
        self._engine.close(self._ts)
        self._out.close(self._about())

    # --- findings ---------------------------------------------------------------------------------

    def _mark(self, envelope: Envelope, ts: float, tracks: dict[str, Track]) -> None:
        step = self._engine.track_of(envelope)
        culprits = self._culprits.get(envelope.seq)
        if culprits:
            track = tracks.get(getattr(envelope.event, "request", None) or "", step)
            self._mark_culprit(envelope, ts, track, culprits)
        for mark in self._shown.get(envelope.seq, ()):
            track = tracks.get(mark.finding.victim or "", step)
            self._mark_finding(ts, track, mark)

    def _mark_culprit(
        self, envelope: Envelope, ts: float, track: Track, marks: Sequence[_Mark]
    ) -> None:
        args = _about_culprit(envelope, marks[0].finding)
        self._out.instant(track, "finding", f"culprit: {envelope.kind}", ts, args)
        for number, finding in marks:
            if finding.seq > envelope.seq and envelope.step and _step_of(finding):
                self._out.arrow_from(track, finding.check, number, ts)
                self._arrows.add(number)

    def _mark_finding(self, ts: float, track: Track, mark: _Mark) -> None:
        number, finding = mark
        names = " ".join(name for name in (finding.check, finding.fault_class) if name)
        self._out.instant(track, "finding", f"finding: {names}", ts, _about_finding(finding))
        if number in self._arrows:
            self._out.arrow_to(track, finding.check, number, ts)

    def _tracks_now(self, envelope: Envelope) -> dict[str, Track]:
        """Of the requests that a mark at this event may be put on."""
        names = {getattr(envelope.event, "request", None)}
        names |= {mark.finding.victim for mark in self._shown.get(envelope.seq, ())}
        found = {
            name: self._requests.open_track(envelope.rank, name)
            for name in names
            if isinstance(name, str)
        }
        return {name: track for name, track in found.items() if track is not None}

    # --- the whole --------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        because = self._survey.clock.made_up_because
        report, run = self._survey.report, self._header
        clock = "recorded" if because is None else f"made up, a microsecond an event: {because}"
        of_run = {} if run is None else {
            "engine": f"{run.engine} {run.engine_version}",
            "model": run.model,
            "started": run.wall_clock,
        }  # fmt: skip
        return {
            "written_by": "kvrewind",
            **of_run,
            "events": self._events,
            "verdict": report.verdict,
            "findings": len(report.findings),
            "missing": "; ".join(report.missing),
            "clock": clock,
        }


def _about_finding(finding: Finding) -> dict[str, Any]:
    told = finding.to_json().items()
    return {name: _finite(value) for name, value in told if value not in (None, [])}


def _finite(value: Any) -> Any:
    """JSON has no word for a fill of minus infinity."""
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _step_of(finding: Finding) -> int:
    return int(finding.position.partition(":")[0])


def _about_culprit(envelope: Envelope, finding: Finding) -> dict[str, Any]:
    told = {
        "position": envelope.position,
        "decision": finding.decision or envelope.event.decision,
        "block": getattr(envelope.event, "block", None),
        "allowed": finding.explanation,
    }
    return {name: value for name, value in told.items() if value is not None}
