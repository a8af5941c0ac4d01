"""The checks while the run goes on: told of each step, they say what it broke.

All rules of `check` take part, since each looks at an event once; what needs a second run, the
model or another trace (`bisect`, `--against`) doesn't. What is told is what is known then: a later
step may revise the blame of the few steps before it, and a wrong decision that is noticed late may
turn out to come before the one that was told as the root. `report` has it as it stands at the end,
the same as `check` says of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..recorder.errors import KvrewindError
from ..recorder.events import Envelope
from .check import Inspection
from .findings import Finding
from .passphrases import PassphraseWatch
from .sightings import Sighting, Sightings
from .verdict import Report

OVERWRITTEN_KEPT = 100_000
"""Writes that no slot holds any more, after which what is over is forgotten: about 15 MB."""


VIOLATIONS_KEPT = 20_000
"""After so many broken rules the checks stop: whoever looks has enough, and each takes memory."""


class TooManyFindings(Exception):
    """The run breaks rules again and again, and the checks stop."""

    def __init__(self, violations: int) -> None:
        super().__init__(f"rules were broken {violations:,} times")


class FindingMade(KvrewindError):
    """A run is ended because a check found something."""

    exit_status = 1


class OnlineChecks:
    """An observer of the trace writer, or of an `ObservedSink`.

    `on_finding` is called with each `Sighting`, in the thread that reports the steps, roots first
    within a step. A check that fails itself ends the checking and nothing else: `failure` is what
    it raised, and `on_failure` is called with it once. So it is with `TooManyFindings`.
    """

    def __init__(
        self,
        on_finding: Callable[[Sighting], None] = lambda sighting: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.first: Sighting | None = None
        """What was found first."""
        self.failure: Exception | None = None
        self._on_finding = on_finding
        self._on_failure = on_failure
        self._inspection = Inspection()
        self._sightings = Sightings()
        self._spoken = 0
        """Passphrases that were told."""

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        """Check the events of a step."""
        if self.failure is not None or not envelopes:
            return
        try:
            for envelope in envelopes:
                self._inspection.see(envelope)
            sightings = self._new(envelopes[-1].step)
            if self._inspection.overwritten > OVERWRITTEN_KEPT:
                self._inspection.forget()
        except Exception as error:  # a failing check must not end the run; it is told instead
            self.failure = error
            self._on_failure(error)
            return
        for sighting in sightings:
            self.first = self.first or sighting
            self._on_finding(sighting)
        if len(self._inspection.violations) > VIOLATIONS_KEPT:
            self.failure = TooManyFindings(len(self._inspection.violations))
            self._on_failure(self.failure)

    @property
    def by_check(self) -> Counter[str]:
        """How many findings of each check were told; `passphrase` counts whoever said one."""
        counts = +self._sightings.by_check
        if self._spoken:
            counts["passphrase"] = self._spoken
        return counts

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings as they stand now, in the order of `check`. Settles them anew."""
        return self._inspection.findings()

    def raise_if_found(self) -> None:
        """Raises `FindingMade` once something was found."""
        _raise_for(self.first)

    def report(self, problems: Sequence[str] = ()) -> Report:
        """The verdict on all that was seen. `problems`: what the recording itself lacks."""
        if self.failure is not None:
            told = (
                f"the online checks stopped ({self.failure!r}): run `kvrewind check` on the trace"
            )
            problems = (*problems, told)
        return self._inspection.report(problems)

    def _new(self, step: int) -> list[Sighting]:
        sightings = self._sightings.of_step(self._inspection.violations, step)
        spoken = self._inspection.passphrases
        for finding in spoken[self._spoken :]:
            self._spoken += 1
            sightings.append(Sighting(finding, None, self._spoken))
        return sightings


class PassphraseListener:
    """An observer of steps in clear, where the checks are shown redacted ones: it listens for
    passphrases, and keeps nothing else. Its findings name requests, and no word.

    The callbacks are those of `OnlineChecks`; `named`: how a finding calls a request.
    """

    def __init__(
        self,
        on_finding: Callable[[Sighting], None] = lambda sighting: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
        named: Callable[[str], str] = str,
    ) -> None:
        self.first: Sighting | None = None
        self.failure: Exception | None = None
        self.count = 0
        self._on_finding = on_finding
        self._on_failure = on_failure
        self._watch = PassphraseWatch(named)

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        if self.failure is not None:
            return
        try:
            for envelope in envelopes:
                self._watch.see(envelope)
        except Exception as error:  # a failing check must not end the run; it is told instead
            self.failure = error
            self._on_failure(error)
        for finding in self._watch.findings[self.count :]:
            self.count += 1
            sighting = Sighting(finding, None, self.count)
            self.first = self.first or sighting
            self._on_finding(sighting)

    def raise_if_found(self) -> None:
        """Raises `FindingMade` once somebody said another's passphrase."""
        _raise_for(self.first)


def _raise_for(sighting: Sighting | None) -> None:
    if sighting is not None:
        finding = sighting.finding
        raise FindingMade(f"the run was ended by {finding.check} at {finding.position}")
