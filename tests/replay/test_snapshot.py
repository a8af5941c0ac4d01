"""The state at which a ring begins: as text, and back without a difference."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.events import Envelope, SpanDropped
from kvrewind.recorder.reader import TraceReader
from kvrewind.replay.check import check
from kvrewind.replay.reducer import fold
from kvrewind.replay.snapshot import BadSnapshot, compacted, dump, load
from kvrewind.replay.state import State
from mixed import mixed
from recorded import recorded
from ringed import cuts, plain, ringed


def assert_restored_anywhere(envelopes: Sequence[Envelope], rng: Random, samples: int) -> None:
    end = plain(compacted(fold(envelopes)))
    for cut in rng.sample(list(cuts(envelopes)), samples):
        state = fold(envelopes[:cut])
        restored = load(dump(state))
        assert plain(restored) == plain(compacted(state))
        restored.header = state.header
        assert plain(compacted(fold(envelopes[cut:], restored))) == end


@pytest.mark.parametrize("seed", range(24))
def test_going_on_from_a_snapshot_is_going_on_from_the_beginning(seed: int) -> None:
    assert_restored_anywhere(mixed(seed), Random(seed), 4)


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_so_it_is_in_a_run_with_a_fault(fault: str) -> None:
    assert_restored_anywhere(recorded(fault), Random(fault), 6)


def test_folding_what_a_ring_leaves_gives_the_state_of_the_whole_run() -> None:
    envelopes = recorded()
    end = plain(compacted(fold(envelopes)))
    for cut in cuts(envelopes):
        state = fold(ringed(envelopes, cut))
        assert plain(compacted(state)) == end
        assert state.header == envelopes[0].event
        assert state.restored_seq is not None
        assert state.restored_seq < envelopes[cut].seq


def test_a_snapshot_grows_with_what_is_held_and_not_with_the_run() -> None:
    envelopes = recorded()
    state, sizes = State(), []
    for _ in range(6):  # the same requests again and again, under other names
        state = compacted(fold(envelopes[1:], state))
        state.header = envelopes[0].event
        sizes.append(len(dump(state)))
    assert max(sizes) < 1.3 * min(sizes)


@pytest.mark.parametrize(
    "text",
    ["", "not base64!", "AAAA", base64.b64encode(zlib.compress(b"{}")).decode()],
)
def test_a_text_that_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(BadSnapshot, match="can't be read"):
        load(text)


def test_a_snapshot_of_a_later_version_says_so() -> None:
    later = base64.b64encode(zlib.compress(json.dumps({"version": 3}).encode())).decode()
    with pytest.raises(BadSnapshot, match=r"format 3.*upgrade"):
        load(later)


def test_a_snapshot_of_version_1_is_read_as_well() -> None:
    """The frozen ring was written with one."""
    with TraceReader(Path(__file__).parents[2] / "traces" / "v2" / "ring.kvtrace") as trace:
        envelopes = list(trace.envelopes())
    mark = next(e.event for e in envelopes if isinstance(e.event, SpanDropped))
    assert mark.state is not None
    assert json.loads(zlib.decompress(base64.b64decode(mark.state)))["version"] == 1
    state = load(mark.state)
    assert sum(len(pool.slots) for pool in state.pools.values()) > 300
    assert plain(load(dump(state))) == plain(state)
    report = check(envelopes)
    assert report.findings == ()
    assert all("what was held and written then is known" in told for told in report.missing)
