"""Events to bytes and back, for every class of the vocabulary."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.recorder.codec import Context, StoredRow, alone, decode
from kvrewind.recorder.encoder import Encoder, encode
from kvrewind.recorder.errors import BadEvent
from kvrewind.recorder.events import (
    EVENTS,
    BlockAllocated,
    BlockShared,
    DecisionMade,
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    SlotsWritten,
    StepDispatched,
    TokensSampled,
)


def stored(
    kind: str, payload: bytes, request: str | None = None, block: int | None = None
) -> StoredRow:
    return StoredRow(0, 1, 0, 0, kind, request, block, payload)


def back(event: Event) -> Event:
    encoder = Encoder()
    encoded = encoder.encode(event)
    names = dict(encoder.names.take_new())
    row = stored(type(event).__name__, encoded.payload, encoded.request, encoded.block)
    return decode(row, Context(names.get, lambda _: [], {}))


def shuffled(value: Any) -> Any:
    """An equal value built another way: maps in reverse order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(data=st.data())
def test_every_event_decodes_to_what_was_encoded(
    any_event: st.SearchStrategy[Event], data: st.DataObject
) -> None:
    event = data.draw(any_event)
    assert back(event) == event
    assert encode(back(event)) == encode(event)


@given(data=st.data())
def test_equal_events_have_equal_bytes_however_their_maps_are_ordered(
    any_event: st.SearchStrategy[Event], data: st.DataObject
) -> None:
    event = data.draw(any_event)
    twin = replace(event, **{f.name: shuffled(getattr(event, f.name)) for f in fields(event)})
    assert twin == event
    assert encode(twin) == encode(event)


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_no_damaged_payload_gives_anything_but_an_error_that_names_the_kind(
    cls: type[Event],
) -> None:
    seed = random.Random(cls.__name__)
    for _ in range(300):
        payload = bytes(seed.randrange(256) for _ in range(seed.randrange(12)))
        try:
            decode(stored(cls.__name__, b"\x93" + payload, "r", 1), alone())
        except BadEvent as error:
            assert cls.__name__ in str(error)


def test_a_payload_with_any_byte_changed_is_an_event_or_an_error() -> None:
    event = InputsBuilt(
        requests=("a", None),
        query_lens=(3, 1),
        seq_lens=(3, 0),
        block_tables=((1, 300), ()),
        positions=(0, 1, 2, 0),
        slot_mapping=(5, 6, 7, -1),
        phases=("prefill", "decode"),
    )
    names = Context({1: "a"}.get, lambda _: [], {})
    payload = encode(event).payload
    outcomes = set()
    for index in range(len(payload)):
        for flip in (0x01, 0x80, 0xFF):
            changed = payload[:index] + bytes([payload[index] ^ flip]) + payload[index + 1 :]
            try:
                outcomes.add(decode(stored("InputsBuilt", changed), names) == event)
            except BadEvent:
                outcomes.add(None)
    assert outcomes == {False, None}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\xc1", "InputsBuilt"),
        (msgpack.packb({}), "not an array of fields"),
        (msgpack.packb([]), "requests is missing"),
        (msgpack.packb([None, ["a"]]), "requests is not an array"),
        (msgpack.packb([None, msgpack.ExtType(9, b"\x07")]), "number 7 is lost"),
        (msgpack.packb([None] * 40), "more fields than this version"),
    ],
)
def test_the_error_says_what_is_wrong_with_a_payload(payload: bytes, says: str) -> None:
    with pytest.raises(BadEvent, match=says):
        decode(stored("InputsBuilt", payload), alone())


def test_a_row_without_its_request_is_no_allocation() -> None:
    encoded = encode(BlockAllocated(block=1, request="a", index=0))
    with pytest.raises(BadEvent, match="request is not text"):
        decode(stored("BlockAllocated", encoded.payload, None, 1), alone())


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(BadEvent, match="BlockTeleported"):
        decode(stored("BlockTeleported", msgpack.packb([])), alone())


@pytest.mark.parametrize(
    ("number", "bytes_each"),
    [(255, 1), (-128, 1), (256, 2), (-129, 2), (65536, 4), (1 << 32, 8), (-(1 << 63), 8)],
)
def test_arrays_take_the_smallest_width_that_fits_all_their_numbers(
    number: int, bytes_each: int
) -> None:
    event = RequestAdded(request="a", prompt_tokens=(3, number, 5), max_new_tokens=1)
    prompt = msgpack.unpackb(encode(event).payload)[1]
    assert len(prompt.data) == 3 * bytes_each
    assert back(event) == event


def test_request_and_block_go_to_their_own_columns_and_not_into_the_payload() -> None:
    encoded = encode(BlockAllocated(block=17, request="alice", index=3))
    assert (encoded.request, encoded.block) == ("alice", 17)
    assert msgpack.unpackb(encoded.payload) == [None, 3]


def test_numpy_numbers_are_stored_as_plain_ones() -> None:
    event = TokensSampled(
        requests=("a",),
        tokens=(np.int64(9),),
        positions=(np.int32(1),),
        rows=(0,),
        margins=(np.float32(0.5),),
    )
    plain = TokensSampled(requests=("a",), tokens=(9,), positions=(1,), rows=(0,), margins=(0.5,))
    assert encode(event) == encode(plain)


def test_floats_stay_out_of_what_the_step_digest_covers() -> None:
    one = TokensSampled(requests=("a",), tokens=(9,), positions=(1,), rows=(0,), margins=(0.5,))
    other = replace(one, margins=(0.25,))
    assert encode(one).exact == encode(other).exact
    assert encode(one).floats != encode(other).floats
    assert encode(one).payload != encode(other).payload
    assert encode(one).exact != encode(replace(one, tokens=(8,))).exact


def test_a_mask_fill_is_a_float_and_keeps_minus_infinity() -> None:
    mask = MaskBuilt(
        form="dense",
        requests=("a",),
        query_lens=(1,),
        allowed=b"\x80",
        keys="pool",
        meaning="additive",
        dtype="float32",
        fill=float("-inf"),
        applied="before_softmax",
    )
    assert back(mask) == mask
    assert encode(mask).exact == encode(replace(mask, fill=None)).exact


def test_the_sign_of_zero_and_nan_survive() -> None:
    event = TokensSampled(
        requests=("a",), tokens=(1,), positions=(1,), rows=(0,), margins=(-0.0, float("nan"))
    )
    decoded = back(event)
    assert isinstance(decoded, TokensSampled)
    assert repr(decoded.margins) == "(-0.0, nan)"


def test_true_is_not_one_in_an_open_field() -> None:
    yes, one = (DecisionMade(decision="d", about="a", choice=choice) for choice in (True, 1))
    assert encode(yes) != encode(one)


def test_a_choice_of_none_is_kept() -> None:
    event = DecisionMade(decision="d", about="a", choice=None)
    assert back(event) == event


def test_unknown_fields_follow_the_known_ones_in_sorted_order() -> None:
    event = BlockShared(block=1, request="a", index=0, ref_count=2, unknown={"z": 1, "b": None})
    unpacker = msgpack.Unpacker()
    unpacker.feed(encode(event).payload)
    known, unknown = unpacker
    assert known == [None, 0, 2]
    assert list(unknown.items()) == [("b", None), ("z", 1)]
    assert back(event) == event


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (StepDispatched(unknown={"step": 1}), "step"),
        (BlockAllocated(block=1, request="a", index=0, unknown={"group": 1}), "group"),
        (StepDispatched(unknown={"x": {1: 2}}), "map key 1"),
        (StepDispatched(unknown={"x": object()}), "object"),
        (StepDispatched(unknown={"x": "\ud800"}), "surrogate"),
        (BlockAllocated(block=1 << 63, request="a", index=0), "64 bits"),
        (SlotsWritten(write="pad", requests=(None,), positions=(0,), slots=(1 << 63,)), "64 bits"),
        (StepDispatched(unknown={"x": 1 << 600}), "512 bits"),
    ],
)
def test_what_a_trace_cannot_hold_is_refused_with_its_kind(event: Event, says: str) -> None:
    with pytest.raises(BadEvent, match=says) as refused:
        encode(event)
    assert type(event).__name__ in str(refused.value)
