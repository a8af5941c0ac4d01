"""A recorder that is left on for days: the file holds the end of the run, and stays as large."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from kvrewind.recorder.errors import BadInput, UnreadableTrace
from kvrewind.recorder.events import (
    RING,
    Envelope,
    PiecesDefined,
    RequestAdded,
    SpanDropped,
)
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.ring import Ring
from kvrewind.recorder.ring_limit import RingLimit
from kvrewind.recorder.writer import STEPS_AFTER_FREEZE, TraceWriter


class Told:
    """A keyframer whose state is the last seq, and which knows the last few requests."""

    def __init__(self, known: int = 3) -> None:
        self.seq = -1
        self._names: list[str] = []
        self._known = known

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        self.seq = envelopes[-1].seq
        self._names += [e.event.request for e in envelopes if isinstance(e.event, RequestAdded)]
        del self._names[: -self._known]

    def state(self) -> str:
        return f"after {self.seq}"

    def requests(self) -> Collection[str]:
        return set(self._names)


def ring_of(text: str, **how: int) -> Ring:
    return Ring(RingLimit.parse(text), Told(**how))


def record(
    path: Path, sample_events: Callable[..., list], steps: int, ring: Ring | None, **how: object
) -> TraceWriter:
    """Small steps, of which every tenth takes in a request and every third defines a piece."""
    with TraceWriter(path, ring=ring, **how) as writer:  # pyright: ignore[reportArgumentType]
        last = 0
        for event, step in sample_events(steps, ended=True):
            if step > last and step % 10 == 0:
                added = RequestAdded(request=f"q{step}", prompt_tokens=(1, 2), max_new_tokens=1)
                writer.emit(added, step)
            writer.emit(event, step)
            if step > last and step % 3 == 0:
                writer.emit(PiecesDefined(tokens=(step,), pieces=(f"w{step}",)), step)
            last = step
    assert writer.failure is None
    return writer


def timeless(envelopes: Iterable[Envelope]) -> list[Envelope]:
    return [envelope._replace(t_ns=0) for envelope in envelopes]


@pytest.mark.parametrize("length", [1, 7, 40, 100])
def test_the_last_steps_stay_and_what_was_before_is_marked(
    length: int, tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path, whole = tmp_path / "ring.kvtrace", tmp_path / "whole.kvtrace"
    record(path, sample_events, 300, ring_of(f"{length}steps"))
    record(whole, sample_events, 300, None)
    with TraceReader(path) as ring, TraceReader(whole) as everything:
        found = list(ring.envelopes())
        marks = [e for e in found if isinstance(e.event, SpanDropped)]
        (mark,) = marks
        assert isinstance(mark.event, SpanDropped)
        assert (mark.event.first_seq, mark.event.why) == (1, RING)
        assert mark.event.first_seq + mark.event.count == mark.seq
        after = [e for e in found if e.seq > mark.seq]
        assert timeless(after) == timeless(everything.envelopes(mark.seq + 1))
        steps = {e.step for e in after}
        assert length <= len(steps) <= length + max(length // 4, 16) + 1
        assert mark.event.state == f"after {after[0].seq - 1}"
        assert ring.run == everything.run
        assert ring.verify_chain() is None
        assert ring.problems == []
        assert ring.complete


def test_of_what_was_before_the_header_the_pieces_and_the_live_requests_stay(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path = tmp_path / "ring.kvtrace"
    record(path, sample_events, 300, ring_of("20steps", known=3))
    with TraceReader(path) as trace:
        before = []
        for envelope in trace.envelopes():
            if isinstance(envelope.event, SpanDropped):
                break
            before.append(envelope)
        pieces = [e.step for e in before if isinstance(e.event, PiecesDefined)]
        assert pieces == list(range(3, before[-1].step + 1, 3))
        added = [e.event.request for e in before if isinstance(e.event, RequestAdded)]
        assert len(added) == 3
        assert before[0].kind == "RunStarted"
        assert len(before) == 1 + len(pieces) + len(added)
    with sqlite3.connect(path) as shell:
        (names,) = shell.execute("select count(*) from names").fetchone()
        assert names < 60
        assert shell.execute("select count(*) from steps").fetchone()[0] < 60


@pytest.mark.parametrize("steps", [3_000, 9_000])
def test_a_ring_measured_in_bytes_never_grows_beyond_them(
    steps: int, tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path, sizes = tmp_path / "ring.kvtrace", []
    observer = lambda _: sizes.append(path.stat().st_size)  # noqa: E731
    record(path, sample_events, steps, ring_of("1MB"), observers=[observer])
    assert max(sizes) <= 1_000_000
    assert 400_000 < path.stat().st_size <= 1_000_000
    with TraceReader(path) as trace:
        assert trace.problems == []


def test_a_ring_that_was_never_full_is_the_whole_run(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path, whole = tmp_path / "ring.kvtrace", tmp_path / "whole.kvtrace"
    record(path, sample_events, 30, ring_of("100steps"))
    record(whole, sample_events, 30, None)
    with TraceReader(path) as ring, TraceReader(whole) as everything:
        assert timeless(ring.envelopes()) == timeless(everything.envelopes())
        assert ring.digests() == everything.digests()


def test_frozen_it_keeps_what_led_to_it_and_a_few_steps_more(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path = tmp_path / "ring.kvtrace"
    ring = ring_of("40steps")

    def freeze(envelopes: Sequence[Envelope]) -> None:
        if envelopes[-1].step == 150:
            writer.freeze("foreign-read at 150:9")
            writer.freeze("another one")

    with TraceWriter(path, ring=ring, observers=[freeze]) as writer:
        for event, step in sample_events(600, ended=True):
            writer.emit(event, step)
    assert writer.failure is None
    assert writer.frozen is not None
    assert writer.frozen.reason == "foreign-read at 150:9"
    assert not writer.is_recording
    with TraceReader(path) as trace:
        steps = [e.step for e in trace.envelopes()]
        assert set(range(110, 150 + STEPS_AFTER_FREEZE)) <= set(steps)
        assert max(steps) < 150 + 2 * STEPS_AFTER_FREEZE + 16
        assert not trace.complete
        assert trace.verify_chain() is None
        assert json.loads(trace.storage().header["frozen"])["reason"] == "foreign-read at 150:9"


def test_what_stayed_from_before_the_ring_is_covered_by_a_digest_too(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path = tmp_path / "ring.kvtrace"
    record(path, sample_events, 200, ring_of("20steps"))
    with sqlite3.connect(path) as shell:
        shell.execute(
            "update events set request = 'somebody' where seq ="
            " (select min(seq) from events where kind = 'RequestAdded')"
        )
    with TraceReader(path) as trace:
        assert trace.verify_chain() is not None


def test_cut_short_a_ring_opens_as_far_as_it_goes(
    tmp_path: Path, sample_events: Callable[..., list]
) -> None:
    path = tmp_path / "ring.kvtrace"
    record(path, sample_events, 400, ring_of("200steps"))
    with TraceReader(path) as trace:
        whole = list(trace.envelopes())
    data, lengths = path.read_bytes(), []
    for sixteenths in range(2, 16):
        path.write_bytes(data[: len(data) * sixteenths // 16])
        with suppress(UnreadableTrace), TraceReader(path) as trace:
            found = list(trace.envelopes())
            lengths.append(len(found))
            assert found == whole[: len(found)]
    assert max(lengths) > 400


@pytest.mark.parametrize("text", ["200", "0steps", "-1steps", "many", "64 MiB", "1KB", ""])
def test_a_length_that_is_none_is_refused_in_words(text: str) -> None:
    with pytest.raises(BadInput, match="--ring takes"):
        RingLimit.parse(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("200steps", RingLimit(steps=200)), ("1 step", RingLimit(steps=1)),
     ("64MB", RingLimit(bytes=64_000_000)), ("2gb", RingLimit(bytes=2_000_000_000))],
)  # fmt: skip
def test_a_length_is_steps_or_bytes(text: str, limit: RingLimit) -> None:
    assert RingLimit.parse(text) == limit
