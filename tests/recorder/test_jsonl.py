"""The contract's JSON lines, both ways."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.recorder.errors import BadInput, BadLine
from kvrewind.recorder.events import (
    BlockAllocated,
    BlockShared,
    Envelope,
    Event,
    GraphReplayed,
    InputsBuilt,
    MaskBuilt,
    PrefixLookedUp,
    StepDispatched,
    TokensSampled,
    TransferStarted,
)
from kvrewind.recorder.jsonl import read_jsonl, to_line, write_jsonl

ALLOCATED = {"kind": "BlockAllocated", "step": 1, "block": 17, "request": "alice", "index": 3}


def read(*lines: Any) -> list[Envelope]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return list(read_jsonl(io.StringIO(text), "events.jsonl"))


def written(event: Event) -> dict[str, Any]:
    return json.loads(to_line(Envelope(0, 1, 0, 0, event)))


@given(data=st.data())
def test_what_was_exported_imports_as_it_was(
    any_envelopes: st.SearchStrategy[list[Envelope]], data: st.DataObject
) -> None:
    envelopes = data.draw(any_envelopes)
    stream = io.StringIO()
    assert write_jsonl(envelopes, stream) == len(envelopes)
    stream.seek(0)
    assert list(read_jsonl(stream, "x")) == envelopes


def test_seq_time_and_rank_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps(ALLOCATED), "", json.dumps({"kind": "StepDispatched", "step": 2}), "  "]
    path.write_text("\n".join(lines))
    assert list(read_jsonl(path)) == [
        Envelope(0, 1, 0, 0, BlockAllocated(block=17, request="alice", index=3)),
        Envelope(2, 2, 0, 0, StepDispatched()),
    ]


def test_bytes_are_lower_case_hex_and_minus_infinity_is_text() -> None:
    mask = MaskBuilt(
        form="dense",
        requests=("a", None),
        query_lens=(1, 1),
        allowed=b"\xa0\x0f",
        keys="pool",
        meaning="additive",
        dtype="float32",
        fill=float("-inf"),
        applied="before_softmax",
    )
    line = written(mask)
    assert (line["allowed"], line["fill"]) == ("a00f", "-inf")
    assert read(line)[0].event == mask
    sampled = TokensSampled(
        requests=("a",), tokens=(1,), positions=(1,), rows=(0,), logprobs=(float("-inf"),)
    )
    assert written(sampled)["logprobs"] == ["-inf"]


def test_lines_are_compact_ascii_without_absent_optionals() -> None:
    event = BlockShared(block=1, request="Zoë", index=0, ref_count=2)
    line = to_line(Envelope(4, 2, 0, 0, event))
    assert line == (
        '{"kind":"BlockShared","step":2,"seq":4,"block":1,"request":"Zo\\u00eb","index":0,'
        '"ref_count":2}'
    )


def test_null_equals_absent() -> None:
    assert read({**ALLOCATED, "group": None, "decision": None}) == read(ALLOCATED)


def test_any_event_may_carry_its_decision_and_fields_that_we_do_not_know() -> None:
    line = {**ALLOCATED, "decision": "reuse:alice:3:0", "color": {"b": [1, 2.5], "a": None}}
    (envelope,) = read(line)
    assert envelope.event.decision == "reuse:alice:3:0"
    assert envelope.event.unknown == {"color": {"a": None, "b": [1, 2.5]}}
    assert written(envelope.event) == {**line, "seq": 0}


@pytest.mark.parametrize("key", ["b52f", 17, -(2**63), 2**256 - 1])
def test_a_key_is_text_or_an_integer(key: str | int) -> None:
    line = {"kind": "PrefixLookedUp", "step": 1, "request": "a", "keys": [key], "blocks": []}
    (envelope,) = read({**line, "hit_tokens": 0})
    assert isinstance(envelope.event, PrefixLookedUp)
    assert envelope.event.keys == (key,)


def test_a_device_step_reads_as_the_arrays_it_lists() -> None:
    line = {
        "kind": "InputsBuilt",
        "step": 3,
        "requests": ["a", None],
        "query_lens": [2, 1],
        "seq_lens": [2, 0],
        "block_tables": [[4, -1], []],
        "positions": [0, 1, 0],
        "slot_mapping": [64, 65, -1],
        "phases": ["prefill", "decode"],
    }
    event = read(line)[0].event
    assert isinstance(event, InputsBuilt)
    assert event.block_tables == ((4, -1), ())
    assert event.requests == ("a", None)
    assert event.phases == ("prefill", "decode")


def test_a_required_open_field_may_be_null_but_not_absent() -> None:
    line = {"kind": "GraphReplayed", "step": 1, "buffer": "b", "stamp": 1, "stride": 4}
    assert read({**line, "rows": None})[0].event == GraphReplayed(
        buffer="b", stamp=1, stride=4, rows=None
    )
    with pytest.raises(BadLine, match="rows"):
        read(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({**ALLOCATED, "kind": "BlockTeleported"}, "BlockTeleported"),
        ({**ALLOCATED, "kind": 5}, "no kind"),
        ({"step": 1}, "'kind' is missing"),
        ({"kind": "StepDispatched"}, "'step' is missing"),
        ({**ALLOCATED, "step": "1"}, "'step'"),
        ({**ALLOCATED, "step": -1}, "'step' is -1"),
        ({**ALLOCATED, "seq": 1.0}, "'seq' is 1.0"),
        ({**ALLOCATED, "t_ns": True}, "'t_ns' is true"),
        ({k: v for k, v in ALLOCATED.items() if k != "block"}, "lacks the field 'block'"),
        ({**ALLOCATED, "block": None}, "lacks the field 'block'"),
        ({**ALLOCATED, "block": 3.0}, "'block' of BlockAllocated is 3.0, not an integer"),
        ({**ALLOCATED, "block": True}, "true, not an integer"),
        ({**ALLOCATED, "block": "17"}, '"17", not an integer'),
        ({**ALLOCATED, "block": 2**63}, "64 bits"),
        ({**ALLOCATED, "request": 7}, "'request'.*not text"),
        ({**ALLOCATED, "decision": 7}, "'decision'"),
        ({**ALLOCATED, "group": [0]}, "'group'.*a list, not an integer"),
        ({"kind": "BlockScrubbed", "step": 1, "block": 1, "how": "bleach"}, "one of zero, nan"),
        ({"kind": "BlockFreed", "step": 1, "block": 1, "cached": 1}, "true or false"),
        (
            {"kind": "BlockUnregistered", "step": 1, "block": 1, "key": True, "reason": "reset"},
            "key",
        ),
        (
            {"kind": "BlockUnregistered", "step": 1, "block": 1, "key": 1.5, "reason": "reset"},
            "key",
        ),
        ('{"kind": "StepDispatched", "step": 1, "x": NaN}', "NaN is not JSON"),
        ('{"kind": "StepDispatched", "step": 1, "x": 1e999}', "too large"),
        ('{"kind": "StepDispatched", "step": 1, "x": "\\ud800"}', "surrogate"),
        ('{"kind": "StepDispatched", "step": 1', "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"kind": "StepDispatched", "step": 1, "x": ' + "[" * 500 + "]" * 500 + "}", "deep"),
        ("[" * 100_000, "nested too deep|not JSON"),
        ('{"kind": "StepDispatched", "step": ' + "1" * 5_000 + "}", "not a JSON value"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_what_is_wrong(line: Any, says: str) -> None:
    with pytest.raises(BadLine, match=says) as refused:
        read(ALLOCATED, "", line)
    assert str(refused.value).startswith("events.jsonl, line 3: ")
    assert ";" in str(refused.value)
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    "allowed", ["A0", "a", "0x", "zz", "a0 ", 5, ["a0"]], ids=lambda value: repr(value)
)
def test_bytes_that_are_not_lower_case_hex_are_refused(allowed: Any) -> None:
    line = {
        "kind": "MaskBuilt",
        "step": 1,
        "form": "dense",
        "requests": ["a"],
        "query_lens": [1],
        "meaning": "bool_keep",
        "dtype": "bool",
        "applied": "before_softmax",
    }
    assert read({**line, "allowed": "a0"})
    with pytest.raises(BadLine, match="hex"):
        read({**line, "allowed": allowed})


def test_seq_must_grow() -> None:
    assert [e.seq for e in read({**ALLOCATED, "seq": 4}, {**ALLOCATED, "seq": 9})] == [4, 9]
    with pytest.raises(BadLine, match="line 2: seq 4 is not above 4"):
        read({**ALLOCATED, "seq": 4}, {**ALLOCATED, "seq": 4})
    with pytest.raises(BadLine, match="line 2"):
        read({**ALLOCATED, "seq": 4}, ALLOCATED)


def test_the_lines_before_a_bad_one_are_given() -> None:
    envelopes = read_jsonl(io.StringIO(json.dumps(ALLOCATED) + "\n{\n"), "x")
    assert next(envelopes).event == BlockAllocated(block=17, request="alice", index=3)
    with pytest.raises(BadLine, match="x, line 2"):
        next(envelopes)


def test_a_byte_order_mark_is_tolerated_and_other_encodings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ALLOCATED).encode())
    assert len(list(read_jsonl(path))) == 1
    path.write_bytes(json.dumps(ALLOCATED).encode("utf-16"))
    with pytest.raises(BadLine, match=r"events\.jsonl, line 1: not UTF-8"):
        list(read_jsonl(path))
    path.write_bytes(b"{}\n\xff\n")
    with path.open(encoding="utf-8") as stream, pytest.raises(BadLine):
        list(read_jsonl(stream, "piped"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.jsonl can't be opened"):
        list(read_jsonl(tmp_path / "nowhere.jsonl"))


def test_thousands_of_broken_lines_give_nothing_but_bad_line() -> None:
    events = [
        BlockShared(block=1, request="a", index=0, ref_count=2, key="k"),
        TokensSampled(requests=("a",), tokens=(1,), positions=(1,), rows=(0,), margins=(0.5,)),
        TransferStarted(transfer=1, direction="load", blocks=(1,), keys=("k", 2)),
        InputsBuilt(
            requests=("a", None),
            query_lens=(1, 1),
            seq_lens=(1, 0),
            block_tables=((1,), ()),
            positions=(0, 0),
            slot_mapping=(16, -1),
            unknown={"x": {"y": [None, 1.5]}},
        ),
    ]
    lines = [to_line(Envelope(0, 1, 0, 0, event)).encode() for event in events]
    seed = random.Random(2)
    refused = 0
    for _ in range(4_000):
        line = bytearray(seed.choice(lines))
        for _ in range(seed.randrange(1, 4)):
            start = seed.randrange(len(line))
            line[start : start + seed.randrange(4)] = seed.choice(
                [b"", b"null", b"1e5", b'"', b"[", b"}", b"true", b"\xff", b"-", b"\\u", b"9" * 30]
            )
        try:
            list(read_jsonl(io.BytesIO(bytes(line)), "fuzz"))
        except BadLine:
            refused += 1
    assert 2_000 < refused < 4_000
