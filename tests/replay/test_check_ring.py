"""What the checks say of a ring: the same as of the whole run, as far as it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.events import (
    Envelope,
    PiecesDefined,
    RequestAdded,
    SpanDropped,
    TokensSampled,
)
from kvrewind.replay.check import check
from kvrewind.replay.findings import Finding
from kvrewind.replay.passphrases import PassphraseWatch
from kvrewind.replay.snapshot import dump
from kvrewind.replay.state import State
from mixed import mixed
from recorded import recorded
from ringed import cuts, ringed


@pytest.mark.parametrize("seed", range(30))
def test_a_ring_of_a_sound_run_shows_nothing_and_is_not_called_clean(seed: int) -> None:
    envelopes = mixed(seed)
    found = list(cuts(envelopes))
    for cut in Random(seed).sample(found, min(6, len(found))):
        report = check(ringed(envelopes, cut))
        assert report.findings == ()
        assert report.verdict == "incomplete"
        (told,) = report.missing
        assert "had left the ring" in told
        assert "--ring" in told


def blamed(findings: Sequence[Finding]) -> set[int]:
    return {seq for f in findings for seq in (f.culprit_seq, *f.culprits) if seq is not None}


def reads(findings: Sequence[Finding], after: int) -> set[tuple[object, ...]]:
    return {(f.victim, f.seq) for f in findings if f.check == "foreign-read" and f.seq > after}


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_a_cause_inside_the_ring_is_blamed_and_no_other_event_ever_is(fault: str) -> None:
    envelopes = recorded(fault)
    whole = check(envelopes).findings
    inside = cut_off = 0
    for cut in cuts(envelopes):
        begin = envelopes[cut - 1].seq
        found = check(ringed(envelopes, cut)).findings
        assert blamed(found) <= blamed(whole)
        assert reads(whole, begin) <= reads(found, begin)
        for finding in whole:
            if finding.culprit_seq is not None and finding.culprit_seq > begin:
                assert (finding.check, finding.seq, finding.culprit_seq) in {
                    (f.check, f.seq, f.culprit_seq) for f in found
                }
                inside += 1
        for finding in found:
            if finding.culprit_seq is None:
                assert "had left the ring" in finding.explanation
                cut_off += 1
    assert inside > 5
    assert cut_off > 5 or fault.startswith("mask"), "masks decide anew in each step"


def without_state(envelopes: Sequence[Envelope], cut: int) -> list[Envelope]:
    """As though a later kvrewind had written the snapshot."""
    return [
        e._replace(event=e.event.__class__(first_seq=1, count=e.seq - 1, why="ring", state="new"))
        if e.kind == "SpanDropped"
        else e
        for e in ringed(envelopes, cut)
    ]


def test_with_a_snapshot_that_cannot_be_read_nothing_is_held_against_anybody() -> None:
    envelopes = recorded()
    for cut in cuts(envelopes):
        report = check(without_state(envelopes, cut))
        assert report.findings == ()
        assert report.verdict == "incomplete"


def test_a_passphrase_is_heard_in_a_ring_from_a_request_that_was_added_before_it() -> None:
    def added(request: str, **fields: str) -> RequestAdded:
        return RequestAdded(request=request, prompt_tokens=(1,), max_new_tokens=9, **fields)

    said = TokensSampled(requests=("b",), tokens=(7,), positions=(4,), rows=(0,))
    for state, heard in ((dump(State(step=1)), 1), (None, 0)):
        watch = PassphraseWatch()
        for seq, event in enumerate(
            (
                PiecesDefined(tokens=(1, 7), pieces=("the", "rolune")),
                added("a", passphrase="rolune"),
                added("b"),
                SpanDropped(first_seq=3, count=5, why="ring", state=state),
                said,
            )
        ):
            watch.see(Envelope(seq, 1, 0, 0, event))
        assert len(watch.findings) == heard
