"""What was exported and imported again is the trace that it was: every event, digest and end."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.recorder.events import (
    AttentionProbed,
    DecisionMade,
    Envelope,
    Event,
    MaskBuilt,
    RunEnded,
    SpanDropped,
    TokensSampled,
)
from kvrewind.recorder.jsonl import read_jsonl, to_line, write_jsonl
from kvrewind.recorder.reader import EndRecord, TraceReader
from kvrewind.recorder.writer import TraceWriter

NANS = tuple(
    struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    for bits in (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000123)
)
"""A NaN, the one that x86 makes of inf - inf, and one with something in it."""


class Whole(NamedTuple):
    """All that a trace says, as values that compare (a NaN doesn't)."""

    lines: list[str]
    digests: list[Any]
    end: EndRecord | None
    problems: list[str]


def recorded(envelopes: Iterable[Envelope], path: Path) -> Whole:
    with TraceWriter(path) as writer:
        writer.write_envelopes(envelopes)
    assert writer.failure is None
    with TraceReader(path) as reader:
        return Whole(
            [to_line(envelope) for envelope in reader.envelopes()],
            reader.step_digests(),
            reader.end,
            reader.problems,
        )


def exported(path: Path) -> str:
    with TraceReader(path) as reader:
        stream = io.StringIO()
        write_jsonl(reader.envelopes(), stream)
        return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A new folder at every call: Hypothesis calls a test often."""
    base, numbers = tmp_path_factory.mktemp("traces"), count()

    def fresh() -> Path:
        path = base / str(next(numbers))
        path.mkdir()
        return path

    return fresh


def assert_equal_after_import(envelopes: Sequence[Envelope], folder: Path) -> Whole:
    first = recorded(envelopes, folder / "a.kvtrace")
    text = exported(folder / "a.kvtrace")
    again = recorded(read_jsonl(io.StringIO(text), "a.jsonl"), folder / "b.kvtrace")
    assert again == first
    assert exported(folder / "b.kvtrace") == text
    return first


def with_nans(events: Sequence[Envelope], nans: Iterable[float]) -> list[Envelope]:
    """The same with NaNs in the fields that hold floats."""
    supply = iter(nans)
    changed = []
    for e in events:
        event: Event = e.event
        if isinstance(event, TokensSampled):
            event = replace(event, logprobs=(next(supply), 0.1, -math.inf), margins=(math.inf,))
        elif isinstance(event, AttentionProbed):
            event = replace(event, entropy=next(supply))
        elif isinstance(event, MaskBuilt):
            event = replace(event, fill=next(supply))
        changed.append(e._replace(event=event))
    return changed


@given(data=st.data())
@settings(max_examples=15)
def test_any_events_come_back_with_their_digests_and_their_end(
    any_envelopes: st.SearchStrategy[list[Envelope]],
    folder: Callable[[], Path],
    data: st.DataObject,
) -> None:
    envelopes = data.draw(any_envelopes)
    if data.draw(st.booleans()):
        envelopes = with_nans(envelopes, iter(lambda: data.draw(st.sampled_from(NANS)), None))
    if data.draw(st.booleans()):
        last = envelopes[-1].seq if envelopes else -1
        gone = data.draw(st.integers(1, 9))
        dropped = SpanDropped(first_seq=last + 1, count=gone, why="the disk was full")
        envelopes = [*envelopes, Envelope(last + gone + 1, 4, 2**62, 0, dropped)]
    if data.draw(st.booleans()):
        last = envelopes[-1].seq if envelopes else -1
        envelopes = [*envelopes, Envelope(last + 1, 5, 2**62, 0, RunEnded(reason="done"))]
    assert_equal_after_import(envelopes, folder())


@pytest.mark.parametrize("nan", NANS, ids=["nan", "-nan", "nan with a payload"])
def test_every_nan_is_the_same_nan(nan: float, folder: Callable[[], Path]) -> None:
    probed = AttentionProbed(request="a", layer=0, foreign_mass=nan, entropy=1.5, top_slots=(1,))
    sampled = TokensSampled(
        requests=("a", "b"), tokens=(1, 2), positions=(1, 1), rows=(0, 1), margins=(nan, 0.25)
    )
    whole = assert_equal_after_import(
        [Envelope(0, 1, 0, 0, probed), Envelope(1, 1, 0, 0, sampled)], folder()
    )
    assert '"foreign_mass":"nan"' in whole.lines[0]


@pytest.mark.parametrize(
    "value",
    [b"\x00\xff", math.inf, -math.inf, {"deep": [b"ab", {"er": -math.inf}]}, 2**511, -0.0, "\x00"],
    ids=repr,
)
def test_what_the_contract_leaves_open_comes_back_too(
    value: Any, folder: Callable[[], Path]
) -> None:
    decided = DecisionMade(decision="d", about="share", choice=value, unknown={"extra": value})
    assert_equal_after_import([Envelope(0, 1, 0, 0, decided)], folder())


def test_a_run_with_a_planted_fault_is_judged_as_before(folder: Callable[[], Path]) -> None:
    """Of the engine's own recordings; the recorder's tests know of no engine, so from a file."""
    lines = Path(__file__).parents[1] / "tui" / "data" / "leak.jsonl"
    whole = assert_equal_after_import(list(read_jsonl(lines)), folder())
    assert whole.end is not None
    assert whole.problems == []
    assert len(whole.digests) > 30
