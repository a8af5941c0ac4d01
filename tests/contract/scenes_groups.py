"""Two KV groups with block numbers of their own, one with a sliding window."""

from __future__ import annotations

from breaking import lines
from sound import Line, Part, Sound, numbers

WINDOW = 4
P, Q, R = tuple(numbers(11)), tuple(numbers(21)), tuple(numbers(31))


def two_groups() -> Sound:
    """a runs past its window and is trimmed behind it; b's prompt comes beside it."""
    t = Sound(groups=2, windows=[None, WINDOW])
    t.number = 1
    t.add("a", (*P, 15, 16)), t.hold_all("a", [1, 2], [5, 6])
    t.run(1, Part("a", 6), a=17)
    t.publish("a", 0, "k1"), t.publish("a", 0, "k1", group=1)
    t.number = 2
    t.add("b", Q), t.hold_all("b", [3], [1])
    t.run(2, Part("a"), Part("b", 4), a=18, b=25)
    t.number = 3
    # token 7 sees positions 4 to 7: the block of the first four is behind the window
    t.drop("a", 0, group=1)
    t.hold_all("b", [None, 4], [None, 2])
    t.run(3, Part("a"), Part("b"), a=19, b=26)
    t.number = 4
    t.hold_all("a", [None, None, 5], [None, None, 7])
    t.run(4, Part("a"), Part("b"), a=20, b=27)
    t.end_of("a"), t.end_of("b", "eos")
    return t.done()


def a_hit_inside_the_window() -> Sound:
    """b's prompt begins with a's three blocks: of the window's group it needs only the last."""
    t = Sound(groups=2, windows=[None, WINDOW])
    t.number = 1
    t.add("a", (*P, *Q, *R)), t.hold_all("a", [1, 2, 3], [7, 8, 9])
    t.run(1, Part("a", 12), a=35)
    for index in range(3):
        for group in t.all_groups:
            t.publish("a", index, f"k{index}", group=group)
    t.number = 2
    t.drop("a", 0, group=1), t.drop("a", 1, group=1)
    t.hold_all("a", [None] * 3 + [4], [None] * 3 + [10])
    t.add("b", (*P, *Q, *R, 41))
    t.lookup("b", ["k0", "k1", "k2"], [1, 2, 3])
    t.hit("b", 0, 1, 2, keys=["k0", "k1", "k2"])
    t.hit("b", 2, keys=["k2"], group=1)
    t.hold_all("b", [None] * 3 + [5], [None] * 3 + [11])
    t.run(2, Part("a"), Part("b"), a=36, b=42)
    t.number = 3
    t.run(3, Part("a"), Part("b"), a=37, b=43)
    t.end_of("b"), t.end_of("a")
    return t.done()


def a_window_over_chunks() -> Sound:
    """A prompt longer than a step: what is behind the next chunk's window goes before it."""
    t = Sound(groups=2, windows=[None, WINDOW])
    t.number = 1
    t.add("a", (*P, *Q, *R)), t.hold_all("a", [1, 2], [4, 5])
    t.send(1, Part("a", 7)), t.land(1)
    t.publish("a", 0, "k0"), t.publish("a", 0, "k0", group=1)
    t.number = 2
    t.drop("a", 0, group=1)  # token 7 sees positions 4 to 7
    t.hold_all("a", [None, None, 3], [None, None, 6])
    t.run(2, Part("a", 5), a=35)
    t.end_of("a")
    return t.done()


def a_mask_for_each_group() -> Sound:
    """The reference path: one explicit mask a group, over its own pool."""
    t = Sound(groups=2, windows=[None, WINDOW])
    t.keys = "pool"
    t.applies = {"meaning": "additive", "dtype": "float32", "fill": "-inf"}
    t.number = 1
    t.add("a", (*P, 15, 16)), t.hold_all("a", [1, 2], [6, 5])
    t.add("b", Q), t.hold_all("b", [3], [1])
    t.run(1, Part("a", 6), Part("b", 4), a=17, b=25)
    t.number = 2
    t.hold_all("b", [None, 6], [None, 2])
    t.run(2, Part("a"), Part("b"), a=18, b=26)
    t.end_of("a"), t.end_of("b")
    return t.done()


def only_a_window() -> Sound:
    """All layers have a window: group 0 is the one that is trimmed."""
    t = Sound(windows=[WINDOW])
    t.number = 1
    t.add("a", (*P, *Q)), t.hold_all("a", [1, 2])
    t.run(1, Part("a", 8), a=29)
    t.number = 2
    t.drop("a", 0)
    t.add("b", R), t.hold_all("b", [1])
    t.hold_all("a", [None, None, 3])
    t.run(2, Part("a"), Part("b", 4), a=30, b=35)
    t.end_of("a"), t.end_of("b")
    return t.done()


def _released_inside_the_window(t: Sound) -> Line:
    """The window's group keeps listing a block that was given up."""
    release = lines(t, "BlockReleased", block=5, request="a", group=1)[0]
    built = lines(t, "InputsBuilt", step=3, group=1)[0]
    built["block_tables"] = [[5, 6], *built["block_tables"][1:]]
    return release


def _group_is_left_out(t: Sound) -> Line:
    """The window's group is given the table of the other."""
    full = lines(t, "InputsBuilt", step=1, group=None)[0]
    windowed = lines(t, "InputsBuilt", step=1, group=1)[0]
    windowed["block_tables"] = full["block_tables"]
    return windowed


def _window_off_by_one(t: Sound) -> Line:
    mask = lines(t, "MaskBuilt", step=2, group=1)[0]
    mask["window"] = WINDOW + 1
    return mask


def _hit_under_a_key_of_the_other_group(t: Sound) -> Line:
    """k3 is the key of that number's block in the first group only."""
    share = lines(t, "BlockShared", group=1)[0]
    first = lines(t, "BlockRegistered", block=3, group=None)[0]
    at = t.lines.index(first)
    t.lines.insert(at + 1, first | {"block": 9, "key": "k3"})
    share["key"] = "k3"
    return share


def _mask_of_the_other_group(t: Sound) -> Line:
    mask = lines(t, "MaskBuilt", step=2, group=1)[0]
    mask["allowed"] = lines(t, "MaskBuilt", step=2, group=None)[0]["allowed"]
    return mask


def _released_in_the_wrong_group(t: Sound) -> Line:
    release = lines(t, "BlockReleased", block=5, request="a", group=1)[0]
    del release["group"]
    return release


def _hit_without_a_live_key(t: Sound) -> Line:
    """The lookup gives a block that carries no key in either group."""
    looked = lines(t, "PrefixLookedUp", request="b")[0]
    looked["blocks"] = [1, 2, 4]
    return looked


SCENES = (
    two_groups,
    a_hit_inside_the_window,
    a_window_over_chunks,
    a_mask_for_each_group,
    only_a_window,
)

TWINS = (
    (two_groups, _group_is_left_out, "violated", "dangling-table", "F07"),
    (two_groups, _window_off_by_one, "violated", "mask", "F14"),
    (two_groups, _released_inside_the_window, "violated", "dangling-table", "F07"),
    (two_groups, _released_in_the_wrong_group, "violated", "ref-count", "F06"),
    (
        a_hit_inside_the_window,
        _hit_under_a_key_of_the_other_group,
        "violated",
        "stale-index",
        "F02",
    ),
    (a_hit_inside_the_window, _hit_without_a_live_key, "violated", "stale-index", "F02"),
    (a_mask_for_each_group, _mask_of_the_other_group, "contaminated", "mask", "F14"),
)
