"""Speculation: a decode row of one token and its drafts, verified, rejected ones written again."""

from __future__ import annotations

from breaking import lines
from sound import Line, Part, Sound, numbers

P, Q = tuple(numbers(11)), tuple(numbers(21))


def _begun(**how: object) -> Sound:
    t = Sound(**how)
    t.number = 1
    t.add("a", P)
    for group in t.all_groups:
        t.hold("a", 0, 1, group)
    t.add("b", Q[:3])
    for group in t.all_groups:
        t.hold("b", 0, 5, group)
    t.run(1, Part("a", 4), Part("b", 3), a=51, b=61)
    for group in t.all_groups:
        t.publish("a", 0, "a0", group=group)
    t.number = 2
    return t


def some_all_and_none_accepted() -> Sound:
    """The rejected ones are written again by what comes next; b decodes beside it."""
    t = _begun()
    t.hold_all("a", [None, 2])
    t.send(2, Part("a", drafts=(52, 53)), Part("b"))
    t.land(2, a=(52, 54), b=62)  # one of two
    t.number = 3
    t.hold_all("a", [None, None, 3]), t.hold_all("b", [None, 6])
    # positions 6 to 8: over the border into block 3
    t.send(3, Part("a", drafts=(55, 56)), Part("b", drafts=(63,)))
    t.land(3, a=(55, 56, 57), b=(64,))  # all, and none
    t.publish("a", 1, "a1")
    t.number = 4
    t.run(4, Part("a"), Part("b"), a=58, b=65)
    t.end_of("a"), t.end_of("b", "eos")
    return t.done()


def rejected_over_a_block_border() -> Sound:
    """The next block was allocated for drafts that did not stand: it stays, unwritten."""
    t = _begun()
    t.hold_all("a", [None, 2])
    t.send(2, Part("a", drafts=(52, 53)), Part("b"))
    t.land(2, a=(52, 53, 54), b=62)
    t.number = 3
    t.hold_all("a", [None, None, 3]), t.hold_all("b", [None, 6])
    t.send(3, Part("a", drafts=(90, 91)), Part("b"))
    t.land(3, a=(55,), b=63)
    t.publish("a", 1, "a1")  # position 7 was committed; 8 and 9 were not
    t.run(4, Part("a", drafts=(56,)), Part("b"), a=(57,), b=64)
    t.end_of("a"), t.end_of("b")
    return t.done()


def published_as_far_as_committed() -> Sound:
    """A block whose last slots hold rejected drafts is registered only once they are replaced;
    then another request shares it."""
    t = _begun()
    t.hold_all("a", [None, 2])
    t.send(2, Part("a", drafts=(52, 53, 92)), Part("b"))
    t.land(2, a=(52, 53, 54), b=62)  # position 7 was rejected
    t.number = 3
    t.hold_all("b", [None, 6])
    t.run(3, Part("a"), Part("b"), a=55, b=63)
    t.publish("a", 1, "a1")
    t.number = 4
    t.add("c", (*P, 51, 52, 53, 54, 71))
    t.lookup("c", ["a0", "a1"], [1, 2])
    t.hit("c", 0, 1, keys=["a0", "a1"])
    t.hold_all("c", [None, None, 7]), t.hold_all("a", [None, None, 3])
    t.run(4, Part("a"), Part("b"), Part("c"), a=56, b=64, c=72)
    t.end_of("a"), t.end_of("b"), t.end_of("c")
    return t.done()


def preempted_after_a_rejection() -> Sound:
    """What was sampled is computed again, the rejected drafts are nobody's."""
    t = _begun()
    t.hold_all("a", [None, 2])
    t.send(2, Part("a", drafts=(90, 91)), Part("b"))
    t.land(2, a=(52,), b=62)
    t.number = 3
    t.preempt("a")
    t.hold_all("b", [None, 6])
    t.run(3, Part("b"), b=63)
    t.number = 4
    t.lookup("a", ["a0"], [1])
    t.hit("a", 0, keys=["a0"]), t.hold_all("a", [None, 3])
    t.run(4, Part("a", 2), Part("b"), a=53, b=64)
    t.end_of("a"), t.end_of("b")
    return t.done()


def ends_inside_the_drafts() -> Sound:
    """An accepted draft is the end of the text: those behind it never become part of it."""
    t = _begun()
    t.hold_all("a", [None, 2])
    t.send(2, Part("a", drafts=(52, 2, 53)), Part("b"))
    t.write_slots(2), t.complete(2)
    t.event("DraftVerified", request="a", proposed=[52, 2, 53], first=5, accepted=2)
    t.computed["a"] = 7
    t.tokens["a"] += [52, 2]
    t.tokens["b"].append(62)
    t.event(
        "TokensSampled", requests=["a", "a", "b"], tokens=[52, 2, 62], positions=[5, 6, 4],
        rows=[0, 0, 1],
    )  # fmt: skip
    t.end_of("a", "eos")
    t.number = 3
    t.hold_all("b", [None, 6])
    t.run(3, Part("b"), b=63)
    t.end_of("b")
    return t.done()


def drafts_in_both_groups() -> Sound:
    t = _begun(groups=2, windows=[None, 3])
    for group in t.all_groups:
        t.hold("a", 1, 2, group)
    t.send(2, Part("a", drafts=(52, 93)), Part("b"))
    t.land(2, a=(52, 53), b=62)
    t.number = 3
    t.drop("a", 0, group=1)  # token 6 sees positions 4 to 6
    for group in t.all_groups:
        t.hold("b", 1, 6, group)
    t.run(3, Part("a"), Part("b"), a=54, b=63)
    t.end_of("a"), t.end_of("b")
    return t.done()


def _shared_for_what_was_rejected(t: Sound) -> Line:
    """c's prompt goes on with the draft that was rejected, not with what replaced it."""
    prompt = lines(t, "RequestAdded", request="c")[0]["prompt_tokens"]
    prompt[7] = 92
    return lines(t, "BlockShared", key="a1", request="c")[0]


def _tokens_of_the_rejected(t: Sound) -> Line:
    """The next row is given the rejected draft in the place of the token that was sampled."""
    built = lines(t, "InputsBuilt", step=4)[0]
    built["tokens"][0] = 91
    return built


def _bonus_from_the_neighbour(t: Sound) -> Line:
    sampled = lines(t, "TokensSampled", step=2)[0]
    sampled["rows"] = [1, 1, 1]
    return sampled


def _goes_on_past_the_rejected(t: Sound) -> Line:
    """The row counts the rejected drafts: it reads and writes two tokens further on."""
    built = lines(t, "InputsBuilt", step=4)[0]
    built["slot_mapping"][0] += 1
    built["slot_mapping"][1] += 1
    written = lines(t, "SlotsWritten", step=4, write="decode")[0]
    written["slots"][0] += 1
    lines(t, "SlotsWritten", step=4, write="draft")[0]["slots"][0] += 1
    return built


def _window_of_the_first_draft(t: Sound) -> Line:
    """The window is trimmed as though both drafts stood: token 5 still needs position 3."""
    release = lines(t, "BlockReleased", block=1, request="a", group=1)[0]
    freed = lines(t, "BlockFreed", block=1, group=1)[0]
    t.lines.remove(release), t.lines.remove(freed)
    at = t.lines.index(lines(t, "StepScheduled", step=2)[0])
    t.lines[at:at] = [release | {"step": 2}, freed | {"step": 2}]
    built = lines(t, "InputsBuilt", step=2, group=1)[0]
    built["block_tables"][0][0] = -1
    return built


SCENES = (
    some_all_and_none_accepted,
    rejected_over_a_block_border,
    published_as_far_as_committed,
    preempted_after_a_rejection,
    ends_inside_the_drafts,
    drafts_in_both_groups,
)

TWINS = (
    (
        published_as_far_as_committed,
        _shared_for_what_was_rejected,
        "contaminated",
        "identity",
        "F01",
    ),
    (rejected_over_a_block_border, _tokens_of_the_rejected, "violated", "row-identity", "F11"),
    (some_all_and_none_accepted, _bonus_from_the_neighbour, "contaminated", "row-identity", "F11"),
    (rejected_over_a_block_border, _goes_on_past_the_rejected, "violated", "address", "F08"),
    (drafts_in_both_groups, _window_of_the_first_draft, "violated", "dangling-table", "F07"),
)
