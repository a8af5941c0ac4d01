"""What workers learn of a trace that is still being written, bit by bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..recorder.events import Envelope
from ..recorder.follow import LOOK_EVERY_S, End, Follower
from ..recorder.presence import is_being_written
from ..recorder.reader import TraceReader
from ..replay.check import Inspection
from ..replay.verdict import Report
from .overview import Overview, Survey, surveys

JUDGED_EVERY_S = 0.5


class Growth(NamedTuple):
    """The last event there is, what the whole trace looks like, and why there will be no more."""

    last_seq: int
    overview: Overview
    end: End | None = None


def is_live(source: TraceReader) -> bool:
    """Whether somebody is at work on the trace."""
    path = source.path
    if not isinstance(path, Path) or not is_being_written(path):
        return False
    with TraceReader(path) as now:
        return now.end is None


def follower_of(source: TraceReader, start_seq: int) -> Follower:
    """Of a trace that `is_live`."""
    assert isinstance(source.path, Path)
    return Follower(source.path, start_seq)


def growths(source: TraceReader, follower: Follower) -> Iterator[Growth | None]:
    """What is there before the follower's beginning, then what comes; None where nothing came.

    Rests between looks. Raises what the follower raises.
    """
    last_seq = follower.next_seq - 1
    survey = Survey()
    for survey in surveys(source, follower.next_seq):
        yield Growth(last_seq, survey.so_far())
    while True:
        envelopes, end = follower.look()
        source.rest()
        for envelope in envelopes:
            survey.see(envelope)
            last_seq = envelope.seq
        grown = bool(envelopes) or end is not None
        yield Growth(last_seq, survey.so_far(), end) if grown else None
        if end is not None:
            return
        time.sleep(LOOK_EVERY_S)


def reports(
    source: TraceReader,
    wait_for_end: Callable[[float], bool],
    reading: Callable[[Iterable[Envelope]], Iterable[Envelope]],
) -> Iterator[tuple[Report, tuple[str, ...]]]:
    """What the checks have found so far, whenever that changed; the last report is of the whole,
    with what is wrong with the file.

    `wait_for_end` waits so many seconds for the end of the trace and says whether it came;
    `reading` passes events on as fast as it likes.
    """
    inspection = Inspection()
    next_seq, known = 0, -1
    while True:
        is_over = wait_for_end(JUDGED_EVERY_S if next_seq else 0)
        for envelope in reading(source.envelopes(next_seq)):
            inspection.see(envelope)
            next_seq = envelope.seq + 1
        found = len(inspection.violations) + len(inspection.passphrases)
        if is_over:
            problems = tuple(source.problems)
            yield inspection.report(), problems
            return
        if found != known:
            yield inspection.report(), ()
            known = found
