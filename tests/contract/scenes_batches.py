"""What shares a step: chunks of long prompts, preemptions, padded and dense layouts, failures."""

from __future__ import annotations

from breaking import lines, remove
from sound import Line, Part, Sound, numbers

P, Q, R, S = tuple(numbers(11)), tuple(numbers(21)), tuple(numbers(31)), tuple(numbers(41))

ADDITIVE = {"meaning": "additive", "dtype": "float32", "fill": "-inf"}


def chunks_beside_decoding() -> Sound:
    """b's prompt comes in three pieces while a decodes; only the last piece is sampled."""
    t = Sound()
    t.number = 1
    t.add("a", P[:3]), t.hold_all("a", [1])
    t.run(1, Part("a", 3), a=15)
    t.number = 2
    t.add("b", (*Q, *R, 41)), t.hold_all("b", [3, 4])
    t.run(2, Part("a"), Part("b", 5), a=16)
    t.publish("a", 0, "a0"), t.publish("b", 0, "b0")
    t.number = 3
    t.hold_all("a", [None, 2])
    t.run(3, Part("a"), Part("b", 3), a=17)
    t.publish("b", 1, "b1")
    t.number = 4
    t.hold_all("b", [None, None, 5])
    t.run(4, Part("a"), Part("b"), a=18, b=42)
    t.end_of("a"), t.end_of("b")
    return t.done()


def preempted_between_chunks() -> Sound:
    """b gives up a half computed prompt, a takes its blocks, and b begins again with a hit."""
    t = Sound(blocks=4)
    t.number = 1
    t.add("b", (*Q, *R)), t.hold_all("b", [0, 1])
    t.run(1, Part("b", 6))
    t.publish("b", 0, "b0")
    t.number = 2
    t.preempt("b")
    t.add("a", (*P, *S, 51)), t.hold_all("a", [2, 3, 1])
    t.run(2, Part("a", 9), a=52)
    t.end_of("a")
    t.number = 3
    t.lookup("b", ["b0", "b1"], [0])
    t.hit("b", 0, keys=["b0"]), t.hold_all("b", [None, 3])
    t.run(3, Part("b", 3))
    t.number = 4
    t.run(4, Part("b"), b=35)
    t.end_of("b")
    return t.done()


def preempted_while_decoding() -> Sound:
    """What was sampled is computed again as part of the prompt."""
    t = Sound(blocks=5)
    t.number = 1
    t.add("a", P), t.hold_all("a", [0])
    t.add("b", Q), t.hold_all("b", [1])
    t.run(1, Part("a", 4), Part("b", 4), a=15, b=25)
    t.number = 2
    t.hold_all("a", [None, 2]), t.hold_all("b", [None, 3])
    t.run(2, Part("a"), Part("b"), a=16, b=26)
    t.number = 3
    t.preempt("b")
    t.run(3, Part("a"), a=17)
    t.end_of("a", "eos")
    t.number = 4
    t.hold_all("b", [1, 4])
    t.run(4, Part("b", 6), b=27)
    t.end_of("b")
    return t.done()


def static_reservation() -> Sound:
    """Without preemption a request is admitted with blocks for its end."""
    t = Sound()
    t.number = 1
    t.add("a", P), t.hold_all("a", [0, 1, 2])
    t.run(1, Part("a", 4), a=15)
    t.run(2, Part("a"), a=16)
    t.number = 3
    t.add("b", Q), t.hold_all("b", [3, 4, 5])
    t.run(3, Part("a"), Part("b", 4), a=17, b=25)
    t.end_of("a"), t.end_of("b", "eos")
    return t.done()


def _three_rows(layout: str, keys: str | None) -> Sound:
    """Rows of 4, 6 and 1 tokens: pads stand between them."""
    t = Sound(groups=2, windows=[None, 4])
    t.layout, t.keys = layout, keys
    t.applies = dict(ADDITIVE) if keys else {}
    t.number = 1
    t.add("a", P), t.hold_all("a", [1], [4])
    t.run(1, Part("a", 4), a=15)
    t.number = 2
    t.hold_all("a", [None, 2], [None, 1])
    t.add("b", (*Q, 25, 26)), t.hold_all("b", [3, 4], [2, 3])
    t.add("c", R), t.hold_all("c", [5], [6])
    t.run(2, Part("a"), Part("b", 6), Part("c", 4), a=16, b=27, c=35)
    t.number = 3
    t.hold_all("c", [None, 6], [None, 5])
    t.run(3, Part("a"), Part("b"), Part("c"), a=17, b=28, c=36)
    t.end_of("a"), t.end_of("b"), t.end_of("c")
    return t.done()


def padded_left() -> Sound:
    return _three_rows("padded-left", None)


def padded_right() -> Sound:
    return _three_rows("padded-right", None)


def padded_left_with_a_mask() -> Sound:
    return _three_rows("padded-left", "per_row")


def padded_right_with_a_mask() -> Sound:
    return _three_rows("padded-right", "per_row")


def dense() -> Sound:
    return _three_rows("packed", "concatenated")


def packed_reference() -> Sound:
    return _three_rows("packed", "pool")


def rows_without_pads_are_told_as_empty_pads() -> Sound:
    """An engine may write a pad row of no tokens where the longest row needs none."""
    t = padded_right()
    for line in lines(t, "InputsBuilt", step=2) + lines(t, "MaskBuilt", step=2):
        at = line["requests"].index("b") + 1
        line["requests"].insert(at, None), line["query_lens"].insert(at, 0)
        if line["kind"] == "InputsBuilt":
            line["seq_lens"].insert(at, 0), line["block_tables"].insert(at, [])
    sampled = lines(t, "TokensSampled", step=2)[0]
    sampled["rows"] = [row + (row > 2) for row in sampled["rows"]]
    return t


def a_step_that_fails() -> Sound:
    """The step raises: its requests end with the reason, their blocks go, others go on."""
    t = Sound()
    t.number = 1
    t.add("a", P), t.hold_all("a", [0, 1])
    t.add("b", Q), t.hold_all("b", [2, 3])
    t.run(1, Part("a", 4), Part("b", 4), a=15, b=25)
    t.number = 2
    t.add("c", R), t.hold_all("c", [4])
    t.send(2, Part("a"), Part("b"))
    t.complete(2)
    for name in ("a", "b"):
        t.end_of(name, "error", message="the runner raised: out of memory")
    t.snapshot()
    t.number = 3
    t.hold_all("c", [None, 3])
    t.run(3, Part("c", 4), c=35)
    t.run(4, Part("c"), c=36)
    t.number = 5
    t.add("d", S), t.hold_all("d", [1, 2])
    t.run(5, Part("c"), Part("d", 4), c=37, d=45)
    t.end_of("c"), t.end_of("d")
    return t.done()


def failures_in_both_groups() -> Sound:
    """As above where there are two KV groups, and with nothing left to run."""
    t = Sound(groups=2, windows=[None, 4])
    t.number = 1
    t.add("a", P), t.hold_all("a", [0], [3])
    t.send(1, Part("a", 4))
    t.complete(1)
    t.end_of("a", "error", message="the runner raised: index out of range")
    return t.done()


def _chunk_begins_again(t: Sound) -> Line:
    """The second piece is written where the first one was."""
    built = lines(t, "InputsBuilt", step=3)[0]
    wrong = [12, 13, 14]
    built["slot_mapping"] = [built["slot_mapping"][0], *wrong]
    lines(t, "SlotsWritten", step=3, write="prefill")[0]["slots"] = wrong
    return built


def _length_of_the_whole_prompt(t: Sound) -> Line:
    """A chunk is given the length of the whole prompt: it reads what was not written."""
    built = lines(t, "InputsBuilt", step=2)[0]
    built["seq_lens"][1] = 8
    return built


def _chunk_sampled(t: Sound) -> Line:
    """The token comes from the row of another request."""
    sampled = lines(t, "TokensSampled", step=4)[0]
    sampled["rows"] = [0, 0]
    return sampled


def _kept_over_the_preemption(t: Sound) -> Line:
    """b never gave its block up, and the table it had stays: it is handed to a."""
    release = lines(t, "BlockReleased", block=1, request="b")[0]
    freed = lines(t, "BlockFreed", block=1)[0]
    remove(t, release, freed)
    return lines(t, "BlockAllocated", block=1, request="a")[0]


def _decodes_on_after_the_preemption(t: Sound) -> Line:
    """The table of b still lists the block from before its preemption."""
    release = lines(t, "BlockReleased", block=3, request="b")[0]
    built = lines(t, "InputsBuilt", step=4)[0]
    built["block_tables"][0][1] = 3
    built["slot_mapping"][4:] = [12, 13]
    lines(t, "SlotsWritten", step=4)[0]["slots"][4:] = [12, 13]
    return release


def _pads_are_seen(t: Sound) -> Line:
    """Right padded rows see the keys of the row before them."""
    mask = lines(t, "MaskBuilt", step=2)[0]
    mask["requests"] = [*mask["requests"][:2], "c", *mask["requests"][3:-2], "b", None]
    return mask


def _mask_shifted_by_a_pad(t: Sound) -> Line:
    """The mask was padded on the other side: its rows are not those of the inputs."""
    mask = lines(t, "MaskBuilt", step=2)[0]
    for name in ("requests", "query_lens"):
        mask[name] = [mask[name][1], mask[name][0], *mask[name][2:]]
    return mask


def _sees_the_other_rows(t: Sound) -> Line:
    """One mask over all keys, causal over the concatenation and not over each row."""
    mask = lines(t, "MaskBuilt", step=3)[0]
    width = len(mask["allowed"]) // 2 // len(mask["query_lens"])
    mask["allowed"] = "ff" * width + mask["allowed"][width * 2 :]
    return mask


def _per_row_mask_off_by_one(t: Sound) -> Line:
    """The first query of the decode row of step 3 sees one key too few."""
    mask = lines(t, "MaskBuilt", step=3)[0]
    bits = bytearray.fromhex(mask["allowed"])
    bits[0] &= 0x7F
    mask["allowed"] = bytes(bits).hex()
    return mask


def _row_counted_without_pads(t: Sound) -> Line:
    """The logits of b's row are asked for by a number that doesn't count the pads."""
    sampled = lines(t, "TokensSampled", step=2)[0]
    sampled["rows"] = [0, 2, 4]
    return sampled


def _freed_only_half(t: Sound) -> Line:
    """A failed request keeps a block."""
    finished = lines(t, "RequestFinished", request="a")[0]
    remove(t, lines(t, "BlockReleased", block=1, request="a")[0])
    remove(t, lines(t, "BlockFreed", block=1)[0])
    return finished


def _read_after_the_failure(t: Sound) -> Line:
    """What the failed step should have written is read as though it had been."""
    built = lines(t, "InputsBuilt", step=4)[0]
    built["seq_lens"] = [6]
    return built


SCENES = (
    chunks_beside_decoding,
    preempted_between_chunks,
    preempted_while_decoding,
    static_reservation,
    padded_left,
    padded_right,
    padded_left_with_a_mask,
    padded_right_with_a_mask,
    dense,
    packed_reference,
    rows_without_pads_are_told_as_empty_pads,
    a_step_that_fails,
    failures_in_both_groups,
)

TWINS = (
    (chunks_beside_decoding, _chunk_begins_again, "violated", "address", "F08"),
    (chunks_beside_decoding, _length_of_the_whole_prompt, "violated", "unwritten-read", "F13"),
    (chunks_beside_decoding, _chunk_sampled, "contaminated", "row-identity", "F11"),
    (preempted_between_chunks, _kept_over_the_preemption, "violated", "ref-count", "F06"),
    (
        preempted_while_decoding,
        _decodes_on_after_the_preemption,
        "violated",
        "dangling-table",
        "F07",
    ),
    (padded_left, _row_counted_without_pads, "contaminated", "row-identity", "F11"),
    (padded_right, _pads_are_seen, "violated", "row-identity", "F11"),
    (padded_left_with_a_mask, _mask_shifted_by_a_pad, "violated", "row-identity", "F11"),
    (padded_left_with_a_mask, _per_row_mask_off_by_one, "violated", "mask", "F14"),
    (padded_right_with_a_mask, _per_row_mask_off_by_one, "violated", "mask", "F14"),
    (dense, _sees_the_other_rows, "contaminated", "mask", "F14"),
    (a_step_that_fails, _freed_only_half, "violated", "ref-count", "F06"),
    (a_step_that_fails, _read_after_the_failure, "violated", "unwritten-read", "F13"),
)
