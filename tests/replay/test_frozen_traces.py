"""Traces of every format version, kept as they were written, are read as they were meant.

The files in `traces/` are never made again: what reads them must not change what they say.
"""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from kvrewind.recorder.events import RequestAdded
from kvrewind.recorder.jsonl import write_jsonl
from kvrewind.recorder.naming import names_request, touches_block
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
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
    "v2/leak.kvtrace": Frozen(
        553,
        "contaminated",
        [("identity", "F01")],
        "0cd432a0ad8d150c7f665eafc1173ec24e42a5215745843d30340544d2222792",
    ),
    "v2/busy.kvtrace": Frozen(
        1783, "clean", [], "bde69a41019c37db6d35f4d8f3f0ce71b982eb5d929b05aa1ee62f58beae3ddb"
    ),
    "v2/redacted.kvtrace": Frozen(
        638,
        "contaminated",
        [("dangling-table", "F07")],
        "078b4890cce29511e542d15ec8b54db895266aec013ded8fdc6c915cd055a31d",
    ),
    "v2/ring.kvtrace": Frozen(
        1061, "incomplete", [], "e575440021d4b2f2ebc5cfece060da877fa536f6cdb18b6d7b7de255f431eaa8"
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


@pytest.mark.parametrize("name", [name for name in FROZEN if not name.startswith("v2/ring")])
def test_the_same_events_have_the_same_digests_in_every_version(name: str, tmp_path: Path) -> None:
    with TraceReader(TRACES / name) as old, TraceWriter(tmp_path / "new.kvtrace") as writer:
        writer.write_envelopes(old.envelopes())
        writer.close()
        with TraceReader(writer.path) as new:
            assert new.step_digests() == old.step_digests()
            assert list(new.envelopes()) == list(old.envelopes())


@pytest.mark.parametrize("name", FROZEN)
def test_what_a_request_and_a_block_did_is_found_in_every_version(name: str) -> None:
    with TraceReader(TRACES / name) as trace:
        assert trace.run is not None
        size = trace.run.block_size
        everything = list(trace.envelopes())
        asked = next(e.event.request for e in everything if isinstance(e.event, RequestAdded))
        named = [e for e in everything if names_request(e.event, asked)]
        touched = [e for e in everything if touches_block(e.event, 2, 0, size)]
        assert list(trace.of_request(asked)) == named != []
        assert list(trace.touching_block(2)) == touched != []


def test_the_state_with_which_a_frozen_ring_begins_is_read() -> None:
    with TraceReader(TRACES / "v2/ring.kvtrace") as trace:
        report = check(trace.envelopes(), trace.problems)
    assert "what was held and written then is known" in " ".join(report.missing)
