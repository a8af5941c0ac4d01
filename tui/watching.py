"""What looks on while a run is recorded: the online checks, and gauges for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from ..recorder.observed import ObservedSink
from ..recorder.sink import Sink
from ..recorder.stores.address import Place
from ..recorder.writer import Observer, TraceWriter
from ..replay.online import OnlineChecks, PassphraseListener, TooManyFindings
from ..replay.sightings import Sighting
from .console import say, say_meanwhile
from .finding_log import FindingLog
from .metrics import Address, Gauges, MetricsServer, RecorderUse

OnFinding = Literal["log", "freeze", "raise", "off"]
OnFindingUnrecorded = Literal["log", "raise", "off"]


class Watch:
    """The observers of one run, or of several in turn. As a context manager it serves the gauges.

    `log` and `freeze` look at each step of a recording once it is committed, in the writer's
    thread, and change nothing about the run. `raise` looks at it in the engine's thread, before
    the next one begins: `step_over` raises `FindingMade`.
    """

    def __init__(self, on_finding: OnFinding = "off", metrics: str | None = None) -> None:
        self._on_finding: OnFinding = on_finding
        self._gauges = None if metrics is None else Gauges()
        self._log = FindingLog(say_meanwhile)
        self._writer: TraceWriter | None = None
        self._checks: OnlineChecks | None = None
        self._listener: PassphraseListener | None = None
        self._observed: ObservedSink | None = None
        self._heard: ObservedSink | None = None
        self._freeze: Callable[[str], None] | None = None
        self._server: MetricsServer | None = None
        if metrics is not None and self._gauges is not None:
            self._server = MetricsServer(Address.parse(metrics), self._gauges)
            say(f"metrics: {self._server.url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def is_in_writer(self) -> bool:
        """Whether the checks take their time in the writer's thread."""
        return self._on_finding in ("log", "freeze")

    def recording(self, writer: TraceWriter, *, has_ring: bool = False) -> Sink:
        """Where the events of a run go that `writer` records."""
        self._writer = writer
        observers = self._begin()
        if self._gauges is not None:
            self._gauges.recorder = lambda: _use_of(writer)
        if self._on_finding == "freeze":
            self._freeze = writer.freeze if has_ring else None
            if not has_ring:
                say("note: --on-finding freeze needs --ring; without one all is kept, and goes on")
        if self._on_finding == "raise":
            self._observed = ObservedSink(writer, observers)
            return self._observed
        writer.observers.extend(observers)
        return writer

    def in_clear(self, redacting: Sink, named: Callable[[str], str]) -> Sink:
        """Where the events of a run go that `redacting` makes fit for the sink of `recording`:
        passphrases are listened for before. `named`: what it makes of a request's name."""
        if self._on_finding == "off":
            return redacting
        self._listener = PassphraseListener(self._sighted, _checks_failed, named)
        self._heard = ObservedSink(redacting, [self._listener])
        return self._heard

    def looking_on(self, sink: Sink) -> Sink:
        """Where the events of a run go that is not recorded."""
        observers = self._begin()
        self._observed = ObservedSink(sink, observers) if observers else None
        return self._observed or sink

    def step_over(self) -> None:
        """Raises `FindingMade` where a finding is to end the run."""
        if self._on_finding != "raise":
            return
        self._show_the_rest()
        for watching in (self._checks, self._listener):
            if watching is not None:
                watching.raise_if_found()

    def finish(self) -> None:
        """Tell what came of the run, once all of it was recorded."""
        self._show_the_rest()
        failures = () if self._writer is None else self._writer.observer_failures
        for error in failures:
            say(f"what looked on at the recording failed, and saw no more of it: {error!r}")
        if self._checks is None or failures:
            return
        if self._checks.failure is None or isinstance(self._checks.failure, TooManyFindings):
            self._log.ended(self._checks.report())

    def _show_the_rest(self) -> None:
        """Of the step under way, to those who look on in the engine's thread."""
        for sink in (self._heard, self._observed):
            if sink is not None:
                sink.step_over()

    def _begin(self) -> list[Observer]:
        observers: list[Observer] = []
        self._log = FindingLog(say_meanwhile)
        if self._on_finding != "off":
            self._checks = OnlineChecks(self._sighted, _checks_failed)
            observers.append(self._checks)
        if self._gauges is not None:
            self._gauges.restart(None if self._checks is None else self._by_check)
            observers.append(self._gauges)
        return observers

    def _by_check(self) -> Counter[str]:
        counts = Counter[str]() if self._checks is None else self._checks.by_check
        if self._listener is not None:
            counts["passphrase"] += self._listener.count
        return counts

    def _sighted(self, sighting: Sighting) -> None:
        self._log.sighted(sighting)
        if self._freeze is not None:
            self._freeze(f"{sighting.finding.check} at {sighting.finding.position}")


def _checks_failed(error: Exception) -> None:
    """`log` and `freeze` go on recording; `raise` can find nothing any more."""
    if isinstance(error, TooManyFindings):
        why = f"{error}; `kvrewind check` on the trace has the rest"
    else:
        why = f"{error!r}; run `kvrewind check` on the trace, and please report it"
    say_meanwhile(f"the online checks stopped, the recording goes on: {why}")


def _use_of(writer: TraceWriter) -> RecorderUse:
    return RecorderUse(
        queued_events=writer.queued_events,
        events=writer.events,
        dropped_events=writer.dropped,
        trace_bytes=_size(writer.path),
    )


def _size(place: Place) -> int | None:
    """None where the trace is no file."""
    with suppress(OSError):
        return place.stat().st_size if isinstance(place, Path) else None
    return None
