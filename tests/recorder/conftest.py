"""Strategies for any event of the vocabulary, derived from its annotations, and small traces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from kvrewind.recorder.events import (
    EVENTS,
    BlockAllocated,
    BlockRegistered,
    Envelope,
    Event,
    InputsBuilt,
    RequestAdded,
    RunEnded,
    RunStarted,
    TokensSampled,
)
from kvrewind.recorder.fields import FieldSpec, fields_of
from kvrewind.recorder.writer import TraceWriter

sys.path.insert(0, str(Path(__file__).parent))  # for `postgres_server`

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
BIG = st.integers(-(2**300), 2**300)
FLOAT = st.floats(allow_nan=False)
SCALAR = TEXT | BIG | INT64
PLAIN = st.recursive(
    st.none() | st.booleans() | BIG | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=5).map(tuple)


BY_SHAPE: dict[str, st.SearchStrategy[Any]] = {
    "int": INT64,
    "float": FLOAT,
    "bool": st.booleans(),
    "str": TEXT,
    "bytes": st.binary(max_size=8),
    "scalar": SCALAR,
    "list": st.lists(PLAIN, max_size=3),
    "map": st.dictionaries(TEXT, PLAIN, max_size=3),
    "any": PLAIN,
    "ints": tuples(INT64),
    "floats": tuples(FLOAT),
    "names": tuples(TEXT),
    "rows": tuples(st.none() | TEXT),
    "scalars": tuples(SCALAR),
    "table": tuples(tuples(INT64)),
}


def values_of(spec: FieldSpec) -> st.SearchStrategy[Any]:
    if spec.words is None:
        return BY_SHAPE[spec.shape]
    word = st.sampled_from(spec.words)
    return tuples(word) if spec.shape == "words" else word


def events_of(cls: type[Event]) -> st.SearchStrategy[Event]:
    specs = fields_of(cls)
    taken = {spec.name for spec in specs} | {"kind", "step", "seq", "t_ns", "rank"}
    names = TEXT.filter(lambda name: name not in taken)
    required = {spec.name: values_of(spec) for spec in specs if spec.required}
    optional = {spec.name: values_of(spec) for spec in specs if not spec.required}
    optional["unknown"] = st.dictionaries(names, PLAIN, max_size=2)
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: cls(**values))


ANY_EVENT = st.sampled_from(EVENTS).flatmap(events_of)


@st.composite
def envelope_lists(draw: st.DrawFn) -> list[Envelope]:
    """Envelopes with growing seq, steps that also fall, any time and rank."""
    seq = draw(st.integers(0, 3))
    found = []
    for event in draw(st.lists(ANY_EVENT, max_size=6)):
        step, t_ns, rank = draw(
            st.tuples(st.integers(0, 4), st.integers(0, 2**62), st.integers(0, 3))
        )
        found.append(Envelope(seq, step, t_ns, rank, event))
        seq += draw(st.integers(1, 3))
    return found


@pytest.fixture(scope="session")
def any_event() -> st.SearchStrategy[Event]:
    return ANY_EVENT


@pytest.fixture(scope="session")
def any_envelopes() -> st.SearchStrategy[list[Envelope]]:
    return envelope_lists()


def run_started() -> RunStarted:
    return RunStarted(
        engine="test",
        engine_version="1",
        model="symbolic",
        dtype="float32",
        device="cpu",
        num_blocks=64,
        block_size=4,
        groups=[{"layers": [0], "kv_heads": 1, "head_dim": 8}],
        sentinel_blocks=(0,),
        seed=7,
        wall_clock="2026-01-02T03:04:05Z",
        config={"exact": False, "sharing": "tenant", "publish": "completed"},
        versions={"kvrewind": "0"},
    )


def step_events(step: int) -> list[Event]:
    """What a small step emits: two blocks, the device's arrays, a key, a token with its margin."""
    name = f"r{step % 5}"
    block = 1 + step % 40
    return [
        BlockAllocated(block=block, request=name, index=step),
        BlockAllocated(block=block + 1, request=name, index=step + 1),
        InputsBuilt(
            requests=(name, None),
            tokens=(step, step + 1, 0),
            query_lens=(2, 1),
            seq_lens=(step + 2, 0),
            block_tables=((block, block + 1), ()),
            positions=(step, step + 1, 0),
            slot_mapping=(block * 4, block * 4 + 1, -1),
        ),
        BlockRegistered(block=block, key=f"key-{step}", request=name, tokens=(1, 2, 3, step)),
        TokensSampled(
            requests=(name,), tokens=(step,), positions=(step + 2,), rows=(0,), margins=(step / 7,)
        ),
    ]


EVENTS_PER_STEP = 5


def all_events(steps: int, *, ended: bool) -> list[tuple[Event, int]]:
    found: list[tuple[Event, int]] = [(run_started(), 0)]
    found.append((RequestAdded(request="r1", prompt_tokens=(5, 6, 7), max_new_tokens=4), 1))
    for step in range(1, steps + 1):
        found += [(event, step) for event in step_events(step)]
    if ended:
        found.append((RunEnded(reason="done"), steps))
    return found


@pytest.fixture(scope="session")
def sample_events() -> Callable[..., list[tuple[Event, int]]]:
    """(steps, ended=...) -> events with their steps, as an engine would emit them."""
    return all_events


@pytest.fixture
def make_trace(tmp_path: Path) -> Callable[..., Path]:
    """Writes a trace of that many small steps and gives its path."""

    def make(steps: int = 20, *, ended: bool = True, name: str = "run.kvtrace") -> Path:
        path = tmp_path / name
        with TraceWriter(path) as writer:
            for event, step in all_events(steps, ended=ended):
                writer.emit(event, step)
        assert writer.failure is None
        return path

    return make
