"""The run again under another switch: one line of a laboratory notebook."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..recorder.errors import KvrewindError
from ..recorder.events import Envelope
from ..replay.source import EventSource
from ..replay.verdict import Report

Rerun = Callable[[Mapping[str, object]], tuple[Sequence[Envelope], bool]]
"""Switches -> the events of the re-executed run, and whether it finished."""


@dataclass(frozen=True, slots=True)
class Trial:
    label: str
    switches: Mapping[str, object]


TRIALS: tuple[Trial, ...] = (
    Trial("as recorded", {}),
    Trial("prefix cache off", {"prefix_cache": False}),
    Trial("continuous batching off", {"continuous_batching": False}),
    Trial("one request at a time", {"max_num_seqs": 1}),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial gave: a report, or why there is none."""

    report: Report | None = None
    finished: bool = True
    failure: str | None = None
    seconds: float = 0.0

    @property
    def word(self) -> str:
        if self.report is None:
            return "failed"
        return self.report.verdict if self.finished else "did-not-finish"


def outcome_of(trial: Trial, rerun: Rerun) -> Outcome:
    """Re-executes and checks; what can't be re-executed is an outcome as well."""
    from ..replay.check import check

    begin = time.monotonic()
    try:
        envelopes, finished = rerun(trial.switches)
    except KvrewindError as error:
        return Outcome(failure=str(error), seconds=time.monotonic() - begin)
    return Outcome(check(envelopes), finished, seconds=time.monotonic() - begin)


def rerun_of(source: EventSource) -> Rerun:
    """Loads the recorded model once, when first asked. The result raises NotReexecutable."""
    made: list[Rerun] = []

    def rerun(switches: Mapping[str, object]) -> tuple[Sequence[Envelope], bool]:
        if not made:
            made.append(_opened(source))
        return made[0](switches)

    return rerun


def _opened(source: EventSource) -> Rerun:
    # here, since a real model brings torch along
    from ..replay.recording import Recording
    from ..replay.reexecute import Reexecutor

    executor = Reexecutor(Recording.of(source.envelopes()))

    def rerun(switches: Mapping[str, object]) -> tuple[Sequence[Envelope], bool]:
        result = executor.run(switches)
        return result.envelopes, result.finished

    return rerun
