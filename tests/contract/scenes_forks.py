"""Several samples of one prompt: forks made in the step that ends it, and copies on write."""

from __future__ import annotations

from breaking import insert, lines, move, remove
from sound import Line, Part, Sound, numbers

P, Q = tuple(numbers(11)), tuple(numbers(21))
CHILDREN = ("a/1", "a/2")


def _taken_in(t: Sound, tokens: tuple[int, ...]) -> None:
    t.number = 1
    t.add("a", tokens, sampling={"n": 3})
    for child in CHILDREN:
        t.add(child, tokens, parent="a", sampling={"n": 3})


def three_samples() -> Sound:
    """The last block is half full: whoever writes first copies it, the last one writes in place."""
    t = Sound()
    _taken_in(t, (*P, 15, 16))
    t.hold_all("a", [1, 2])
    for child in CHILDREN:
        t.fork(child, "a", 6)
    t.send(1, Part("a", 6))
    t.land(1, **{"a": 17, "a/1": 18, "a/2": 19})
    t.publish("a", 0, "k0")
    t.number = 2
    t.own_copy("a", 1, 3, 2), t.own_copy("a/1", 1, 4, 2)
    t.run(2, Part("a"), Part("a/1"), Part("a/2"), **{"a": 20, "a/1": 21, "a/2": 22})
    t.run(3, Part("a"), Part("a/1"), Part("a/2"), **{"a": 23, "a/1": 24, "a/2": 25})
    t.end_of("a/1", "eos"), t.end_of("a")
    t.number = 4
    t.hold_all("a/2", [None, None, 5])
    t.run(4, Part("a/2"), **{"a/2": 26})
    t.end_of("a/2")
    return t.done()


def whole_blocks() -> Sound:
    """A prompt of whole blocks: nobody has to copy anything."""
    t = Sound()
    _taken_in(t, P + Q)
    t.hold_all("a", [1, 2])
    for child in CHILDREN:
        t.fork(child, "a", 8)
    t.run(1, Part("a", 8), **{"a": 31, "a/1": 32, "a/2": 33})
    t.number = 2
    for block, name in enumerate(("a", *CHILDREN), start=3):
        t.hold_all(name, [None, None, block])
    t.run(2, Part("a"), Part("a/1"), Part("a/2"), **{"a": 34, "a/1": 35, "a/2": 36})
    t.end_of("a"), t.end_of("a/1"), t.end_of("a/2")
    return t.done()


def forked_behind_the_last_chunk() -> Sound:
    """The fork comes with the last piece of the prompt, beside another request."""
    t = Sound()
    _taken_in(t, (*P, 15, 16))
    t.add("b", Q), t.hold_all("b", [6])
    t.hold_all("a", [1])
    t.run(1, Part("b", 4), Part("a", 3), b=25)
    t.number = 2
    t.hold_all("b", [None, 7]), t.hold_all("a", [None, 2])
    for child in CHILDREN:
        t.fork(child, "a", 6)
    t.send(2, Part("b"), Part("a", 3))
    t.land(2, **{"b": 26, "a": 17, "a/1": 18, "a/2": 19})
    t.number = 3
    t.own_copy("a", 1, 3, 2)
    # the children wait for a seat: one runs now, the other a step later
    t.own_copy("a/1", 1, 4, 2)
    t.run(3, Part("b"), Part("a"), Part("a/1"), **{"b": 27, "a": 20, "a/1": 21})
    t.end_of("b"), t.end_of("a"), t.end_of("a/1")
    t.number = 4
    t.run(4, Part("a/2"), **{"a/2": 22})
    t.end_of("a/2")
    return t.done()


def a_child_that_is_preempted() -> Sound:
    """It gives up what it shares and what it copied, and is computed again in its own blocks."""
    t = Sound()
    _taken_in(t, (*P, 15, 16))
    t.hold_all("a", [1, 2])
    for child in CHILDREN:
        t.fork(child, "a", 6)
    t.run(1, Part("a", 6), **{"a": 17, "a/1": 18, "a/2": 19})
    t.publish("a", 0, "k0")
    t.number = 2
    t.own_copy("a", 1, 3, 2), t.own_copy("a/1", 1, 4, 2)
    t.run(2, Part("a"), Part("a/1"), Part("a/2"), **{"a": 20, "a/1": 21, "a/2": 22})
    t.number = 3
    t.preempt("a/2"), t.preempt("a/1")
    t.run(3, Part("a"), a=23)
    t.end_of("a")
    t.number = 4
    t.lookup("a/1", ["k0"], [1])
    t.hit("a/1", 0, keys=["k0"]), t.hold_all("a/1", [None, 5])
    t.lookup("a/2", ["k0"], [1])
    t.hit("a/2", 0, keys=["k0"]), t.hold_all("a/2", [None, 2])
    t.run(4, Part("a/1", 4), Part("a/2", 4), **{"a/1": 24, "a/2": 25})
    t.end_of("a/1"), t.end_of("a/2")
    return t.done()


def a_child_that_leaves_at_once() -> Sound:
    """Aborted while it waits, with nothing but the parent's blocks."""
    t = Sound()
    _taken_in(t, (*P, 15))
    t.hold_all("a", [1, 2])
    for child in CHILDREN:
        t.fork(child, "a", 5)
    t.run(1, Part("a", 5), **{"a": 16, "a/1": 17, "a/2": 18})
    t.number = 2
    t.event("AbortRequested", request="a/1")
    t.end_of("a/1", "aborted")
    t.own_copy("a", 1, 3, 1)
    t.run(2, Part("a"), Part("a/2"), **{"a": 19, "a/2": 20})
    t.end_of("a"), t.end_of("a/2")
    return t.done()


def forks_in_both_groups() -> Sound:
    t = Sound(groups=2, windows=[None, 4])
    _taken_in(t, (*P, 15, 16))
    t.hold_all("a", [1, 2], [8, 9])
    for child in CHILDREN:
        t.fork(child, "a", 6)
    t.run(1, Part("a", 6), **{"a": 17, "a/1": 18, "a/2": 19})
    t.number = 2
    for group, first in ((0, 3), (1, 1)):
        t.own_copy("a", 1, first, 2, group), t.own_copy("a/1", 1, first + 1, 2, group)
    t.run(2, Part("a"), Part("a/1"), Part("a/2"), **{"a": 20, "a/1": 21, "a/2": 22})
    t.number = 3
    for name in ("a", *CHILDREN):
        t.drop(name, 0, group=1)
    t.run(3, Part("a"), Part("a/1"), Part("a/2"), **{"a": 23, "a/1": 24, "a/2": 25})
    t.end_of("a"), t.end_of("a/1"), t.end_of("a/2")
    return t.done()


def forked_behind_a_trim() -> Sound:
    """The parent gave up what lies behind its window before its prompt ended; b was handed it."""
    t = Sound(groups=2, windows=[None, 4])
    _taken_in(t, (*P, *Q, 31, 32))
    t.hold_all("a", [1, 2], [8, 9])
    t.send(1, Part("a", 8)), t.land(1)
    t.number = 2
    t.drop("a", 0, group=1)
    t.add("b", Q[:3]), t.hold_all("b", [6], [8])
    t.hold_all("a", [None, None, 3], [None, None, 10])
    t.send(2, Part("a"), Part("b", 3)), t.land(2, b=25)
    t.number = 3
    for child in CHILDREN:
        t.fork(child, "a", 10)
    t.send(3, Part("a"), Part("b"))
    t.land(3, **{"a": 33, "a/1": 34, "a/2": 35, "b": 26})
    t.end_of("a"), t.end_of("a/1"), t.end_of("a/2"), t.end_of("b")
    return t.done()


def a_copied_block_that_is_shared() -> Sound:
    """a filled up its copy, which c's prompt has as well."""
    t = Sound()
    _taken_in(t, (*P, 15, 16))
    t.hold_all("a", [1, 2])
    for child in CHILDREN:
        t.fork(child, "a", 6)
    t.run(1, Part("a", 6), **{"a": 17, "a/1": 18, "a/2": 19})
    t.publish("a", 0, "k0")
    t.number = 2
    t.own_copy("a", 1, 3, 2), t.own_copy("a/1", 1, 4, 2)
    t.run(2, Part("a"), Part("a/1"), **{"a": 20, "a/1": 21})
    t.end_of("a/1", "eos")
    t.run(3, Part("a"), Part("a/2"), **{"a": 22, "a/2": 23})
    t.publish("a", 1, "k1")
    t.number = 4
    t.hold_all("a", [None, None, 5])
    t.add("c", (*P, 15, 16, 17, 20, 41))
    t.lookup("c", ["k0", "k1"], [1, 3])
    t.hit("c", 0, 1, keys=["k0", "k1"]), t.hold_all("c", [None, None, 6])
    t.run(4, Part("a"), Part("c"), a=24, c=42)
    t.end_of("a"), t.end_of("a/2"), t.end_of("c")
    return t.done()


def _not_copied(t: Sound) -> Line:
    """a writes into the block that its children share."""
    for line in (
        *lines(t, "BlockAllocated", block=3, request="a"),
        *lines(t, "BlockCopied", destination=3),
        *lines(t, "BlockReleased", block=2, request="a"),
    ):
        remove(t, line)
    lines(t, "BlockReleased", block=2, request="a/1")[0]["ref_count"] = 2
    for line in lines(t, "InputsBuilt"):
        if "a" in line["requests"]:
            row = line["requests"].index("a")
            line["block_tables"][row] = [1, 2]
            if line["step"] > 1:
                line["slot_mapping"][row] -= 4
    for line in lines(t, "SlotsWritten", write="decode"):
        if "a" in line["requests"]:
            line["slots"][line["requests"].index("a")] -= 4
    lines(t, "BlockReleased", block=3, request="a")[0].update(block=2, ref_count=1)
    remove(t, lines(t, "BlockFreed", block=3)[0])
    return lines(t, "SlotsWritten", step=2)[0]


def _copied_late(t: Sound) -> Line:
    """The copy comes after the step that reads its destination."""
    copied = lines(t, "BlockCopied", destination=4)[0]
    copied["step"] = 2
    move(t, copied, before=lines(t, "StepScheduled", step=3)[0])
    return copied


def _copied_partly(t: Sound) -> Line:
    copied = lines(t, "BlockCopied", destination=4)[0]
    copied["slots"] = 1
    return copied


def _copy_forgotten(t: Sound) -> Line:
    """The new block replaces the entry, and nothing is copied into it."""
    remove(t, lines(t, "BlockCopied", destination=4)[0])
    return lines(t, "BlockAllocated", block=4)[0]


def _copied_in_the_wrong_group(t: Sound) -> Line:
    """The window's group gets no copy; the first group's blocks of those numbers do."""
    copied = lines(t, "BlockCopied", destination=1, group=1)[0]
    remove(t, copied)
    return lines(t, "BlockAllocated", block=1, group=1)[0]


def _count_forgets_a_child(t: Sound) -> Line:
    share = lines(t, "BlockShared", request="a/2", block=2)[0]
    share["ref_count"] = 2
    return share


def _sampled_from_the_neighbour(t: Sound) -> Line:
    """The children's tokens come from b's row, which isn't their parent."""
    sampled = lines(t, "TokensSampled", step=2)[0]
    sampled["rows"] = [0, 1, 1, 0]
    return sampled


def _forked_from_another(t: Sound) -> Line:
    """A child is given the last block of b, and not its parent's."""
    share = lines(t, "BlockShared", request="a/2", block=1)[0]
    share["block"] = 6
    share["ref_count"] = 2
    built = lines(t, "InputsBuilt", step=4)[0]
    built["block_tables"][0][0] = 6
    for line in lines(t, "BlockReleased", block=6, request="b"):
        line["ref_count"] = 1
    remove(t, lines(t, "BlockFreed", block=6)[0])
    for line in lines(t, "BlockReleased", block=1):
        if line["request"] == "a/2":
            line["block"] = 6
        else:
            line["ref_count"] -= 1
    freed = lines(t, "BlockFreed", block=1)[0]
    released = lines(t, "BlockReleased", block=1, ref_count=0)[0]
    freed["block"] = 6
    t.lines.insert(t.lines.index(released) + 1, freed | {"block": 1, "step": released["step"]})
    return share


def _copied_block_for_another_prompt(t: Sound) -> Line:
    """c's prompt differs from what was copied: the copy was right, the share is not."""
    lines(t, "RequestAdded", request="c")[0]["prompt_tokens"][5] = 99
    return lines(t, "BlockShared", request="c", block=3)[0]


def _forked_from_a_table_that_was_not_trimmed(t: Sound) -> Line:
    """The parent's table kept the entry, and a child takes it over with the others."""
    share = lines(t, "BlockShared", request="a/1", block=9, group=1)[0]
    insert(t, share | {"block": 8, "index": 0, "ref_count": 2}, before=share)
    release = lines(t, "BlockReleased", request="a/1", block=9, group=1)[0]
    insert(t, release | {"block": 8, "index": 0, "ref_count": 1}, before=release)
    return lines(t, "BlockReleased", request="a", block=8, group=1)[0]


SCENES = (
    three_samples,
    whole_blocks,
    forked_behind_the_last_chunk,
    a_child_that_is_preempted,
    a_child_that_leaves_at_once,
    forks_in_both_groups,
    forked_behind_a_trim,
    a_copied_block_that_is_shared,
)

TWINS = (
    (three_samples, _not_copied, "contaminated", "exclusive-write", "F19"),
    (three_samples, _copied_late, "violated", "exclusive-write", "F19"),
    (three_samples, _copied_partly, "violated", "exclusive-write", "F19"),
    (three_samples, _copy_forgotten, "violated", "exclusive-write", "F19"),
    (three_samples, _count_forgets_a_child, "violated", "ref-count", "F06"),
    (whole_blocks, _count_forgets_a_child, "violated", "ref-count", "F06"),
    (
        forked_behind_the_last_chunk,
        _sampled_from_the_neighbour,
        "contaminated",
        "row-identity",
        "F11",
    ),
    (forked_behind_the_last_chunk, _forked_from_another, "contaminated", "identity", "F01"),
    (
        forked_behind_a_trim,
        _forked_from_a_table_that_was_not_trimmed,
        "violated",
        "dangling-table",
        "F07",
    ),
    (
        a_copied_block_that_is_shared,
        _copied_block_for_another_prompt,
        "contaminated",
        "identity",
        "F01",
    ),
    (forks_in_both_groups, _copied_in_the_wrong_group, "violated", "exclusive-write", "F19"),
)
