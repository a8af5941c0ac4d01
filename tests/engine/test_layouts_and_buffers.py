"""Rows before the model: padded, over one cache, or in buffers that are reused."""

from __future__ import annotations

import numpy as np
import pytest
from kvrewind.recorder.events import GraphReplayed, InputsBuilt, MaskBuilt, StepCompleted
from simulated import answers, events, prompt, run

PROMPTS = [
    prompt("a", range(3, 10), max_new_tokens=5),
    prompt("b", range(20, 23), max_new_tokens=5),
    prompt("c", range(40, 52), arrival_step=3, max_new_tokens=5),
]
LAYOUTS = ("packed", "padded-left", "padded-right", "dense")


@pytest.mark.parametrize("attention", ["fast", "reference"])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_every_layout_gives_the_same_answers(layout: str, attention: str) -> None:
    packed, _ = run(PROMPTS)
    other, _ = run(PROMPTS, layout=layout, attention=attention)
    assert answers(other) == answers(packed)


def test_pads_stand_behind_the_shorter_rows_and_write_nowhere() -> None:
    _, sink = run(PROMPTS, layout="padded-right")
    built = events(sink, InputsBuilt)[0]
    assert built.requests == ("a", "b", None)
    assert built.query_lens == (7, 3, 4)
    assert built.seq_lens == (7, 3, 0)
    assert built.slot_mapping[-4:] == (-1,) * 4
    assert -1 not in built.slot_mapping[:-4]


def test_pads_stand_before_the_shorter_rows() -> None:
    _, sink = run(PROMPTS, layout="padded-left")
    assert events(sink, InputsBuilt)[0].requests == ("a", None, "b")


def test_every_row_of_a_padded_step_is_as_long_as_the_longest() -> None:
    _, sink = run(PROMPTS, layout="padded-right")
    for built in events(sink, InputsBuilt):
        longest = max(built.query_lens)
        live = sum(name is not None for name in built.requests)
        assert sum(built.query_lens) == live * longest


@pytest.mark.parametrize(
    ("layout", "keys", "width"),
    [("packed", "pool", 128), ("padded-right", "per_row", 7), ("dense", "concatenated", 10)],
)
def test_an_explicit_mask_is_over_the_keys_that_the_layout_has(
    layout: str, keys: str, width: int
) -> None:
    _, sink = run(PROMPTS, layout=layout, attention="reference")
    mask = events(sink, MaskBuilt)[0]
    assert (mask.form, mask.keys) == ("dense", keys)
    rows = sum(mask.query_lens)
    bits = np.unpackbits(np.frombuffer(mask.allowed, np.uint8).reshape(rows, -1), axis=1)
    assert bits.shape[1] == -(-width // 8) * 8
    assert bits[:7].sum() == 7 * 8 // 2  # a: causal over seven
    own = bits[7:10]
    assert own.sum() == 3 * 4 // 2  # b: causal over three
    assert not bits[10:].any()  # pads see nothing


def test_decode_steps_are_built_in_buffers_of_captured_sizes() -> None:
    _, sink = run(PROMPTS, persistent_buffers=True)
    replays = events(sink, GraphReplayed)
    assert replays
    for replay in replays:
        assert len(replay.rows) in (1, 2, 4)
        live = [name for name in replay.rows if name is not None]
        assert replay.rows == [*live, *[None] * (len(replay.rows) - len(live))]
    assert any(None in replay.rows for replay in replays)


def test_the_device_echoes_what_it_replayed() -> None:
    _, sink = run(PROMPTS, persistent_buffers=True)
    by_step = {e.step: e.event for e in sink.envelopes if isinstance(e.event, GraphReplayed)}
    built = {e.step: e.event for e in sink.envelopes if isinstance(e.event, InputsBuilt)}
    for envelope in sink.envelopes:
        if isinstance(envelope.event, StepCompleted):
            replay = by_step.get(envelope.step)
            expected = [replay.buffer, replay.stamp] if replay else None
            assert envelope.event.read == expected
            if replay:
                step = built[envelope.step]
                assert (step.buffer, step.stamp, step.stride) == (
                    replay.buffer, replay.stamp, replay.stride,
                )  # fmt: skip


def test_a_stamp_counts_how_often_its_buffer_was_rebuilt() -> None:
    _, sink = run([prompt("a", range(3, 8), max_new_tokens=4)], persistent_buffers=True)
    replays = events(sink, GraphReplayed)
    assert [r.stamp for r in replays] == [1, 2, 3]
    assert len({r.buffer for r in replays}) == 1


def test_buffers_change_no_answer() -> None:
    with_them, _ = run(PROMPTS, persistent_buffers=True)
    without, _ = run(PROMPTS)
    assert answers(with_them) == answers(without)
