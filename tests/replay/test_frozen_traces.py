"""Traces of every format version, kept as they were written, are read as they were meant.

The files in `traces/` are never made again: what reads them must not change what they say.
"""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from kvrewind.recorder.jsonl import write_jsonl
from kvrewind.recorder.reader import TraceReader
from kvrewind.replay.check import check

TRACES = Path(__file__).parents[2] / "traces"


class Frozen(NamedTuple):
    events: int
    verdict: str
    roots: list[tuple[str, str | None]]
    """Check and class of each root."""
    json_lines: str
    """SHA-256 of the trace as JSON lines."""


FROZEN = {
    "v1/leak.kvtrace": Frozen(
        553,
        "contaminated",
        [("identity", "F01")],
        "f9da40bfa0c2c31028b6a44deee05637e6b816fbf2facf612238311c690f7b7d",
    ),
    "v1/busy.kvtrace": Frozen(
        1783, "clean", [], "d6c6756134ab9b783f7dc2027b641a5a3cebe305fae1cb6b8650b262df4ccc3b"
    ),
}


def test_every_trace_in_the_folder_has_its_facts_here() -> None:
    assert {p.relative_to(TRACES).as_posix() for p in TRACES.rglob("*.kvtrace")} == set(FROZEN)


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_trace_says_what_it_said_when_it_was_recorded(name: str) -> None:
    frozen = FROZEN[name]
    with TraceReader(TRACES / name) as trace:
        assert trace.complete
        assert trace.problems == []
        assert trace.count == frozen.events
        text = io.StringIO()
        write_jsonl(trace.envelopes(), text)
        assert sha256(text.getvalue().encode()).hexdigest() == frozen.json_lines
        report = check(trace.envelopes(), trace.problems)
    assert report.verdict == frozen.verdict
    assert [(f.check, f.fault_class) for f in report.findings if f.root] == frozen.roots
