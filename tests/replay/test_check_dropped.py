"""A run of which the recorder had to drop steps: never called clean, and nobody blamed for it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from kvrewind.recorder.digest import by_step
from kvrewind.recorder.events import Envelope, SpanDropped
from kvrewind.replay.check import check
from mixed import mixed


def with_dropped_steps(envelopes: Sequence[Envelope], rng: Random) -> list[Envelope]:
    """Some runs of whole steps are missing; the step behind each begins with the mark. Numbers
    are as the writer gives them, so that the mark has one of its own."""
    kept: list[Envelope] = []
    seq, dropped_from = 0, None
    groups = list(by_step(envelopes))
    for number, (step, group) in enumerate(groups):
        may_drop = 0 < number < len(groups) - 1
        is_dropped = may_drop and rng.random() < (0.8 if dropped_from is not None else 0.2)
        if dropped_from is not None and not is_dropped:
            mark = SpanDropped(
                first_seq=dropped_from, count=seq - dropped_from, why="the store could not keep up"
            )
            kept.append(Envelope(seq, step, group[0].t_ns, 0, mark))
            seq, dropped_from = seq + 1, None
        for envelope in group:
            if not is_dropped:
                kept.append(envelope._replace(seq=seq))
            elif dropped_from is None:
                dropped_from = seq
            seq += 1
    return kept


@pytest.mark.parametrize("seed", range(40))
def test_dropped_steps_raise_no_finding_and_are_never_called_clean(seed: int) -> None:
    envelopes = with_dropped_steps(mixed(seed), Random(seed))
    marks = [e for e in envelopes if isinstance(e.event, SpanDropped)]
    report = check(envelopes)
    assert report.findings == ()
    if marks:
        assert report.verdict == "incomplete"
        told = [sentence for sentence in report.missing if "were dropped" in sentence]
        assert len(told) == len(marks)
        assert all("--when-full block" in sentence for sentence in told)
