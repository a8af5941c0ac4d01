"""Persistent buffers: decode steps in arrays that are rebuilt in place, padded to a captured size,
replayed, and echoed by the device."""

from __future__ import annotations

from typing import Any

from breaking import insert, lines, remove
from sound import Line, Part, Sound, numbers

P, Q, R = tuple(numbers(11)), tuple(numbers(21)), tuple(numbers(31))
STRIDE = 4


def _three(**how: Any) -> Sound:
    """Three requests with one token each to decode."""
    t = Sound(**how)
    t.number = 1
    for name, prompt, block in (("a", P[:3], 1), ("b", Q[:3], 3), ("c", R[:2], 5)):
        t.add(name, prompt)
        for group in t.all_groups:
            t.hold(name, 0, block + group * 6, group)
    t.run(1, Part("a", 3), Part("b", 3), Part("c", 2), a=15, b=25, c=35)
    return t


def _replayed(
    t: Sound, number: int, buffer: str, stamp: int, *names: str, pads: int = 0, known: bool = True
) -> None:
    t.send(
        number, *(Part(name) for name in names), known=known, pads=pads,
        buffer=buffer, stamp=stamp, stride=STRIDE,
    )  # fmt: skip
    t.event(
        "GraphReplayed", buffer=buffer, stamp=stamp, stride=STRIDE, rows=[*names, *[None] * pads]
    )


def _landed(t: Sound, number: int, buffer: str, stamp: int, **sampled: int) -> None:
    t.complete(number, read=[buffer, stamp])
    t.say(number, **sampled)
    t.snapshot()


def one_buffer() -> Sound:
    """Three rows and a pad, the same buffer every time; then two rows in a smaller one."""
    t = _three()
    t.number = 2
    _replayed(t, 2, "decode-4", 1, "a", "b", "c", pads=1)
    t.write_slots(2)
    _landed(t, 2, "decode-4", 1, a=16, b=26, c=36)
    t.number = 3
    t.hold_all("a", [None, 2]), t.hold_all("b", [None, 4])
    _replayed(t, 3, "decode-4", 2, "a", "b", "c", pads=1)
    t.write_slots(3)
    _landed(t, 3, "decode-4", 2, a=17, b=27, c=2)
    t.end_of("c", "eos")
    t.number = 4
    _replayed(t, 4, "decode-2", 1, "a", "b")
    t.write_slots(4)
    _landed(t, 4, "decode-2", 1, a=18, b=28)
    t.end_of("a"), t.end_of("b")
    return t.done()


def buffers_between_other_steps() -> Sound:
    """A step with a prompt in it is no decode step: it is built afresh."""
    t = _three()
    t.number = 2
    _replayed(t, 2, "decode-4", 1, "a", "b", "c", pads=1)
    t.write_slots(2)
    _landed(t, 2, "decode-4", 1, a=16, b=26, c=36)
    t.number = 3
    t.hold_all("a", [None, 2]), t.hold_all("b", [None, 4])
    t.add("d", P), t.hold_all("d", [6])
    t.run(3, Part("a"), Part("b"), Part("c"), Part("d", 4), a=17, b=27, c=37, d=45)
    t.end_of("d")
    t.number = 4
    t.hold_all("c", [None, 6])
    _replayed(t, 4, "decode-4", 2, "a", "b", "c", pads=1)
    t.write_slots(4)
    _landed(t, 4, "decode-4", 2, a=18, b=28, c=38)
    t.end_of("a"), t.end_of("b"), t.end_of("c")
    return t.done()


def two_buffers_in_turn() -> Sound:
    """With two steps in flight the buffers alternate; the tokens come when the device starts."""
    t = _three()
    t.number = 2
    _replayed(t, 2, "decode-4/0", 1, "a", "b", "c", pads=1)
    t.write_slots(2)
    t.number = 3
    t.hold_all("a", [None, 2]), t.hold_all("b", [None, 4])
    _replayed(t, 3, "decode-4/1", 1, "a", "b", "c", pads=1, known=False)
    _landed(t, 2, "decode-4/0", 1, a=16, b=26, c=36)
    t.write_slots(3)
    t.number = 4
    t.hold_all("c", [None, 6])
    _replayed(t, 4, "decode-4/0", 2, "a", "b", "c", pads=1, known=False)
    _landed(t, 3, "decode-4/1", 1, a=17, b=27, c=37)
    t.write_slots(4)
    _landed(t, 4, "decode-4/0", 2, a=18, b=28, c=38)
    t.end_of("a"), t.end_of("b"), t.end_of("c")
    return t.done()


def buffers_in_both_groups() -> Sound:
    """One replay a step, whatever the number of KV groups."""
    t = _three(groups=2, windows=[None, 3])
    t.number = 2
    _replayed(t, 2, "decode-4", 1, "a", "b", "c", pads=1)
    t.write_slots(2)
    _landed(t, 2, "decode-4", 1, a=16, b=26, c=36)
    t.number = 3
    for group in t.all_groups:
        t.hold("a", 1, 2, group), t.hold("b", 1, 4, group)
    _replayed(t, 3, "decode-4", 2, "a", "b", "c", pads=1)
    t.write_slots(3)
    _landed(t, 3, "decode-4", 2, a=17, b=27, c=37)
    t.end_of("a"), t.end_of("b"), t.end_of("c")
    return t.done()


def rebuilt_before_it_was_sent() -> Sound:
    """A build that was never dispatched is replaced: the last one counts."""
    t = one_buffer()
    built = lines(t, "InputsBuilt", step=2)[0]
    insert(t, built | {"stamp": 0, "seq_lens": [9, 9, 9, 0]}, before=built)
    return t


def _rows_out_of_step(t: Sound) -> Line:
    """The tables of two rows were exchanged when the buffer was rebuilt."""
    built = lines(t, "InputsBuilt", step=3)[0]
    tables = built["block_tables"]
    tables[0], tables[1] = tables[1], tables[0]
    return built


def _length_left_from_before(t: Sound) -> Line:
    """c's length was not rebuilt: it has the pad's of the time before, as all pads have."""
    built = lines(t, "InputsBuilt", step=3)[0]
    built["seq_lens"] = [5, 5, 3, 0]
    return built


def _slot_left_from_before(t: Sound) -> Line:
    """The slots of the last time are still in the buffer: c writes over its own last token."""
    built = lines(t, "InputsBuilt", step=3)[0]
    built["slot_mapping"][2] -= 1
    written = lines(t, "SlotsWritten", step=3)[0]
    written["slots"][2] -= 1
    return built


def _token_of_the_pad(t: Sound) -> Line:
    """The sample of c is taken from the pad's row."""
    sampled = lines(t, "TokensSampled", step=2)[0]
    sampled["rows"] = [0, 1, 3]
    return sampled


def _table_of_the_other_group(t: Sound) -> Line:
    built = lines(t, "InputsBuilt", step=3, group=1)[0]
    built["block_tables"] = lines(t, "InputsBuilt", step=3, group=None)[0]["block_tables"]
    return built


def _scheduled_and_left_out(t: Sound) -> Line:
    """The captured size was too small: c has no row."""
    built = lines(t, "InputsBuilt", step=2)[0]
    remove(t, lines(t, "GraphReplayed", step=2)[0])
    built["requests"][2] = None
    built["seq_lens"][2] = 0
    built["block_tables"][2] = []
    built["slot_mapping"][2] = -1
    mask = lines(t, "MaskBuilt", step=2)[0]
    mask["requests"][2] = None
    written = lines(t, "SlotsWritten", step=2)[0]
    for name in ("requests", "positions", "tokens", "slots"):
        written[name].pop()
    return built


SCENES = (
    one_buffer,
    buffers_between_other_steps,
    two_buffers_in_turn,
    buffers_in_both_groups,
    rebuilt_before_it_was_sent,
)

TWINS = (
    (one_buffer, _rows_out_of_step, "contaminated", "row-identity", "F11"),
    (one_buffer, _length_left_from_before, "violated", "unwritten-read", "F13"),
    (one_buffer, _slot_left_from_before, "violated", "address", "F08"),
    (one_buffer, _token_of_the_pad, "contaminated", "row-identity", "F11"),
    (two_buffers_in_turn, _rows_out_of_step, "contaminated", "row-identity", "F11"),
    (buffers_in_both_groups, _table_of_the_other_group, "violated", "dangling-table", "F07"),
)
