"""Hypothesis strategies: any sequence of decodable events over a handful of names."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from kvrewind.recorder.events import (
    EVENTS,
    Envelope,
    Event,
    RunStarted,
)
from kvrewind.recorder.fields import FieldSpec, fields_of

REQUESTS = st.sampled_from(["A", "B", "C"])
KEYS = st.sampled_from(["k0", "k1", "k2"])
NUMBERS = st.integers(-2, 9)

_BY_SHAPE: dict[str, st.SearchStrategy[Any]] = {
    "int": NUMBERS,
    "float": st.sampled_from([0.0, -1.0, -1e9, float("-inf"), 2.5]),
    "bool": st.booleans(),
    "str": st.sampled_from(["A", "B", "float16", "bool", "trim"]),
    "bytes": st.binary(max_size=8),
    "scalar": KEYS,
    "list": st.lists(st.one_of(NUMBERS, KEYS, st.tuples(NUMBERS, KEYS).map(list)), max_size=3),
    "map": st.just({}),
    "any": st.one_of(
        st.none(), NUMBERS, st.fixed_dictionaries({"index": NUMBERS, "kept": NUMBERS | st.none()})
    ),
    "ints": st.lists(NUMBERS, max_size=5).map(tuple),
    "floats": st.lists(st.floats(-2, 2), max_size=3).map(tuple),
    "names": st.lists(REQUESTS, max_size=4).map(tuple),
    "rows": st.lists(REQUESTS | st.none(), max_size=4).map(tuple),
    "scalars": st.lists(KEYS, max_size=3).map(tuple),
    "table": st.lists(st.lists(NUMBERS, max_size=3).map(tuple), max_size=4).map(tuple),
}


def _values(spec: FieldSpec) -> st.SearchStrategy[Any]:
    if spec.words and spec.shape == "words":
        values: st.SearchStrategy[Any] = st.lists(st.sampled_from(spec.words), max_size=4).map(
            tuple
        )
    elif spec.words:
        values = st.sampled_from(spec.words)
    elif spec.name in ("request", "parent"):
        values = REQUESTS
    else:
        values = _BY_SHAPE[spec.shape]
    return values if spec.required else st.none() | values


def event_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{spec.name: _values(spec) for spec in fields_of(kind)})


def header() -> RunStarted:
    return RunStarted(
        engine="any",
        engine_version="1",
        model="none",
        dtype="float32",
        device="cpu",
        num_blocks=5,
        block_size=2,
        groups=[{"layers": [0], "kv_heads": 1, "head_dim": 4}],
        sentinel_blocks=(0,),
        wall_clock="2026-01-01T00:00:00",
        config={},
        versions={},
    )


@st.composite
def traces(draw: st.DrawFn, max_size: int = 40) -> list[Envelope]:
    """Events in any order, most traces with a sound header."""
    kinds = [kind for kind in EVENTS if kind is not RunStarted]
    events = draw(st.lists(st.sampled_from(kinds).flatmap(event_of), max_size=max_size))
    if draw(st.integers(0, 9)):
        events.insert(0, header())
    steps = draw(
        st.lists(st.integers(0, 4), min_size=len(events), max_size=len(events)).map(sorted)
    )
    return [
        Envelope(seq, step, seq, 0, event)
        for seq, (step, event) in enumerate(zip(steps, events, strict=True))
    ]
