"""Two steps in flight: the next one is scheduled, built and sent before the last has completed."""

from __future__ import annotations

from breaking import lines, move, remove
from sound import Line, Part, Sound, numbers

P, Q, R = tuple(numbers(11)), tuple(numbers(21)), tuple(numbers(31))


def _landed(t: Sound, number: int, **sampled: int) -> None:
    """A step whose writes were logged when it began."""
    t.complete(number)
    t.say(number, **sampled)
    t.snapshot()


def overlapped() -> Sound:
    """Writes of step n come when it begins: behind the tokens of step n - 1."""
    t = Sound()
    t.number = 1
    t.add("a", P), t.hold_all("a", [1])
    t.send(1, Part("a", 4)), t.write_slots(1)
    t.number = 2
    t.hold_all("a", [None, 2])
    t.add("b", Q), t.hold_all("b", [3])
    t.send(2, Part("a"), Part("b", 4), known=False)
    _landed(t, 1, a=15)
    t.publish("a", 0, "a0")
    t.write_slots(2)
    t.number = 3
    t.hold_all("b", [None, 4])
    t.send(3, Part("a"), Part("b"), known=False)
    _landed(t, 2, a=16, b=25)
    t.write_slots(3)
    _landed(t, 3, a=17, b=26)
    t.end_of("a"), t.end_of("b")
    return t.done()


def ended_with_a_row_in_flight() -> Sound:
    """a says that it is done while its next row is under way: that row's token is dropped, and the
    blocks are released once the device is done with them. Then c is handed one of them."""
    t = Sound(blocks=6)
    t.number = 1
    t.add("a", P[:3]), t.hold_all("a", [1])
    t.add("b", Q[:3]), t.hold_all("b", [3])
    t.send(1, Part("a", 3), Part("b", 3)), t.write_slots(1)
    t.number = 2
    t.send(2, Part("a"), Part("b"), known=False)
    _landed(t, 1, a=2, b=25)
    t.say_finished("a", "eos")
    t.write_slots(2)
    t.number = 3
    t.hold_all("b", [None, 4])
    t.send(3, Part("b"), known=False)
    _landed(t, 2, b=26)
    t.drop_all("a")
    t.write_slots(3)
    t.number = 4
    t.add("c", R), t.hold_all("c", [1, 0])
    t.send(4, Part("b"), Part("c", 4), known=False)
    _landed(t, 3, b=27)
    t.write_slots(4)
    _landed(t, 4, b=28, c=35)
    t.end_of("b"), t.end_of("c", "eos")
    return t.done()


def aborted_with_a_row_in_flight() -> Sound:
    t = Sound(groups=2, windows=[None, 4])
    t.number = 1
    t.add("a", P), t.hold_all("a", [1, 2], [7, 8])
    t.add("b", Q), t.hold_all("b", [3, 4], [5, 6])
    t.send(1, Part("a", 4), Part("b", 4)), t.write_slots(1)
    t.send(2, Part("a"), Part("b"), known=False)
    _landed(t, 1, a=15, b=25)
    t.write_slots(2)
    t.number = 3
    t.event("AbortRequested", request="a")
    t.say_finished("a", "aborted")
    t.send(3, Part("b"), known=False)
    _landed(t, 2, b=26)
    t.drop_all("a")
    t.write_slots(3)
    _landed(t, 3, b=27)
    t.end_of("b")
    return t.done()


def shared_while_the_next_is_in_flight() -> Sound:
    """b's block is published by step 1 while step 2 writes behind it; c shares it in step 3."""
    t = Sound()
    t.number = 1
    t.add("b", (*Q, 25)), t.hold_all("b", [3, 4])
    t.send(1, Part("b", 5)), t.write_slots(1)
    t.number = 2
    t.send(2, Part("b"), known=False)
    _landed(t, 1, b=26)
    t.publish("b", 0, "b0")
    t.write_slots(2)
    t.number = 3
    t.add("c", (*Q, 41))
    t.lookup("c", ["b0"], [3])
    t.hit("c", 0, keys=["b0"]), t.hold_all("c", [None, 5])
    t.send(3, Part("b"), Part("c"), known=False)
    _landed(t, 2, b=27)
    t.write_slots(3)
    _landed(t, 3, b=28, c=42)
    t.end_of("b"), t.end_of("c")
    return t.done()


def chunks_in_flight() -> Sound:
    """A chunk is sent behind another one; the fork comes with the last, and copies behind it."""
    t = Sound()
    t.number = 1
    t.add("a", (*P, 15, 16), sampling={"n": 2}), t.add("a/1", (*P, 15, 16), parent="a")
    t.hold_all("a", [1])
    t.send(1, Part("a", 3)), t.write_slots(1)
    t.number = 2
    t.hold_all("a", [None, 2])
    t.fork("a/1", "a", 6)
    t.send(2, Part("a", 3))
    _landed(t, 1)
    t.write_slots(2)
    t.number = 3
    t.own_copy("a", 1, 3, 2)
    t.send(3, Part("a"), Part("a/1"), known=False)
    _landed(t, 2, **{"a": 17, "a/1": 18})
    t.publish("a", 0, "a0")
    t.write_slots(3)
    _landed(t, 3, **{"a": 19, "a/1": 20})
    t.end_of("a"), t.end_of("a/1")
    return t.done()


def writes_told_late() -> Sound:
    """Another engine logs a step's writes when it completes: a copy made meanwhile takes what the
    step under way is still to write."""
    t = Sound()
    t.number = 1
    t.add("a", (*P, 15, 16), sampling={"n": 2}), t.add("a/1", (*P, 15, 16), parent="a")
    t.hold_all("a", [1, 2])
    t.fork("a/1", "a", 6)
    t.send(1, Part("a", 6))
    t.number = 2
    t.own_copy("a", 1, 3, 2)
    t.send(2, Part("a"), Part("a/1"), known=False)
    t.write_slots(1), t.copy_slots(2, 3, 2)
    _landed(t, 1, **{"a": 17, "a/1": 18})
    t.write_slots(2)
    _landed(t, 2, **{"a": 19, "a/1": 20})
    t.end_of("a"), t.end_of("a/1")
    return t.done()


def completed_before_a_preemption() -> Sound:
    """The pool is too full to go on: the step in flight is completed first."""
    t = Sound(blocks=4)
    t.number = 1
    t.add("a", P), t.hold_all("a", [0])
    t.add("b", Q), t.hold_all("b", [1])
    t.send(1, Part("a", 4), Part("b", 4)), t.write_slots(1)
    t.number = 2
    t.hold_all("a", [None, 2]), t.hold_all("b", [None, 3])
    t.send(2, Part("a"), Part("b"), known=False)
    _landed(t, 1, a=15, b=25)
    t.write_slots(2)
    for number in (3, 4, 5):
        t.send(number, Part("a"), Part("b"), known=False)
        _landed(t, number - 1, a=13 + number, b=23 + number)
        t.write_slots(number)
    _landed(t, 5, a=19, b=29)
    t.number = 6
    t.preempt("b")
    t.hold_all("a", [None, None, 3])
    t.send(6, Part("a")), t.write_slots(6)
    _landed(t, 6, a=20)
    t.end_of("a")
    t.number = 7
    t.hold_all("b", [0, 1, 2])
    t.send(7, Part("b", 9)), t.write_slots(7)
    _landed(t, 7, b=30)
    t.end_of("b")
    return t.done()


def a_failure_with_the_next_in_flight() -> Sound:
    """Step 1 raises when step 2 has been sent: both rows' requests end, the blocks go at C2."""
    t = Sound()
    t.number = 1
    t.add("a", P[:3]), t.hold_all("a", [1])
    t.send(1, Part("a", 3)), t.write_slots(1)
    t.number = 2
    t.add("b", Q), t.hold_all("b", [2])
    t.send(2, Part("a"), Part("b", 4), known=False)
    t.complete(1)
    t.say_finished("a", "error", message="the runner raised")
    t.number = 2
    lines(t, "SlotsWritten", step=1)  # what it had written by then
    flight = t.flights[2]
    flight.rows = {
        g: [row for row in rows if row.request != "a"] for g, rows in flight.rows.items()
    }
    t.write_slots(2)
    t.complete(2)
    t.event("TokensSampled", requests=["b"], tokens=[25], positions=[4], rows=[1])
    t.tokens["b"].append(25)
    t.drop_all("a")
    t.snapshot()
    t.number = 3
    t.hold_all("b", [None, 1])
    t.send(3, Part("b")), t.write_slots(3)
    _landed(t, 3, b=26)
    t.end_of("b")
    return t.done()


def _token_of_another(t: Sound) -> Line:
    """The token that step 1 gave b is taken by a."""
    sampled = lines(t, "TokensSampled", step=2)[0]
    sampled["rows"] = [1, 0]
    return sampled


def _computed_without_those_in_flight(t: Sound) -> Line:
    """Step 3 forgets the token that step 2 is computing: it overwrites its slot."""
    built = lines(t, "InputsBuilt", step=3)[0]
    built["slot_mapping"][0] -= 1
    lines(t, "SlotsWritten", step=3)[0]["slots"][0] -= 1
    return built


def _released_and_still_listed(t: Sound) -> Line:
    """c is handed a block of a's, and the table of a row in flight still has it."""
    release = lines(t, "BlockReleased", block=3, request="b")[0]
    freed = lines(t, "BlockFreed", block=3)[0]
    before = lines(t, "StepScheduled", step=4)[0]
    for line in (release, freed):
        line["step"] = 4
        move(t, line, before=before)
    return release


def _never_released(t: Sound) -> Line:
    """What a request in flight held is forgotten once it has landed."""
    remove(t, *lines(t, "BlockReleased", block=8, request="a"), *lines(t, "BlockFreed", block=8))
    return lines(t, "RequestFinished", request="a")[0]


def _shared_before_it_is_b0(t: Sound) -> Line:
    """c takes the block in which step 2 is still writing b's own tokens."""
    share = lines(t, "BlockShared", key="b0")[0]
    added = lines(t, "RequestAdded", request="c")[0]
    added["prompt_tokens"][0] = 20
    return share


def _copied_before_the_step(t: Sound) -> Line:
    """Too few slots are copied behind the step under way."""
    copied = lines(t, "BlockCopied", destination=3)[0]
    copied["slots"] = 1
    return copied


SCENES = (
    overlapped,
    ended_with_a_row_in_flight,
    aborted_with_a_row_in_flight,
    shared_while_the_next_is_in_flight,
    chunks_in_flight,
    writes_told_late,
    completed_before_a_preemption,
    a_failure_with_the_next_in_flight,
)

TWINS = (
    (overlapped, _token_of_another, "contaminated", "row-identity", "F11"),
    (overlapped, _computed_without_those_in_flight, "violated", "address", "F08"),
    (ended_with_a_row_in_flight, _released_and_still_listed, "violated", "dangling-table", "F07"),
    (aborted_with_a_row_in_flight, _never_released, "violated", "ref-count", "F06"),
    (
        shared_while_the_next_is_in_flight,
        _shared_before_it_is_b0,
        "contaminated",
        "identity",
        "F01",
    ),
    (chunks_in_flight, _copied_before_the_step, "violated", "exclusive-write", "F19"),
    (writes_told_late, _copied_before_the_step, "violated", "exclusive-write", "F19"),
)
