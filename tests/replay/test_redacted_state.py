"""A ring is redacted with the state that it begins with."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from random import Random

import pytest
from kvrewind.engine.faults.registry import FAULTS
from kvrewind.recorder.events import Envelope, Event, SpanDropped
from kvrewind.recorder.keyed_hash import RedactionKey
from kvrewind.recorder.redaction import Redactor
from kvrewind.replay.check import check
from kvrewind.replay.redacted_state import redacted_span
from kvrewind.replay.snapshot import load
from mixed import mixed
from recorded import recorded
from ringed import cuts, plain, ringed

KEY = RedactionKey(bytes(range(32)))


def redacted(envelopes: Sequence[Envelope], **how) -> list[Envelope]:
    redactor = Redactor.keyed(KEY, **how)

    def redact(event: Event) -> Event:
        is_span = isinstance(event, SpanDropped)
        return redacted_span(redactor, event) if is_span else redactor.redact(event)

    return [e._replace(event=redact(e.event)) for e in envelopes]


def states(envelopes: Sequence[Envelope]) -> list[str]:
    spans = [e.event for e in envelopes if isinstance(e.event, SpanDropped)]
    return [span.state for span in spans if span.state is not None]


@pytest.mark.parametrize("names", ["clear", "keyed"])
@pytest.mark.parametrize("seed", range(6))
def test_the_state_of_a_ring_is_that_of_the_redacted_run(seed: int, names: str) -> None:
    envelopes = mixed(seed)
    for cut in Random(seed).sample(list(cuts(envelopes)), 2):
        first = redacted(ringed(envelopes, cut), names=names)
        then = ringed(redacted(envelopes, names=names), cut)
        (one,), (other,) = states(first), states(then)
        assert plain(load(one)) == plain(load(other))
        assert [e for e in first if e.kind != "SpanDropped"] == [
            e for e in then if e.kind != "SpanDropped"
        ]


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_a_redacted_ring_shows_what_the_clear_one_shows(fault: str) -> None:
    envelopes = recorded(fault)
    found = list(cuts(envelopes))
    for cut in (found[len(found) // 4], found[len(found) // 2]):
        ring = ringed(envelopes, cut)
        clear, hidden = (check(run).to_json() for run in (ring, redacted(ring)))
        for finding in (*clear["findings"], *hidden["findings"]):
            for told in ("expected", "actual", "explanation"):
                del finding[told]
        assert hidden == clear


def test_the_state_tells_no_token_and_no_key() -> None:
    envelopes = recorded()
    ring = ringed(envelopes, list(cuts(envelopes))[10])
    (clear,), (hidden,) = states(ring), states(redacted(ring))
    text = zlib.decompress(base64.b64decode(hidden)).decode()
    before = load(clear)
    keys = [str(key) for pool in before.pools.values() for key in pool.index]
    assert keys
    assert not [key for key in keys if key in text]
    prompt = next(iter(before.requests.values())).tokens[:4]
    assert ",".join(map(str, prompt)) not in text
    assert ",".join(map(str, prompt)) in zlib.decompress(base64.b64decode(clear)).decode()
    assert "zil" not in text
