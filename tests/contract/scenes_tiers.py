"""Host memory behind the pool, scrubbed blocks, and the order in which free ones are handed out."""

from __future__ import annotations

from breaking import insert, lines, move, remove
from sound import Line, Part, Sound, numbers

P, Q, R = tuple(numbers(11)), tuple(numbers(21)), tuple(numbers(31))


def _stored(**how: object) -> Sound:
    """a computed P and Q, left, and both blocks are on their way to host memory."""
    t = Sound(blocks=6, **how)
    t.number = 1
    t.add("a", P + Q)
    for group in t.all_groups:
        t.hold("a", 0, 1, group), t.hold("a", 1, 2, group)
    t.run(1, Part("a", 8), a=2)
    for group in t.all_groups:
        t.publish("a", 0, "k0", group=group), t.publish("a", 1, "k1", group=group)
    t.end_of("a", "eos")
    for group in t.all_groups:
        t.store(10 + group, [group * 2, group * 2 + 1], 2, 1, group=group)
    t.number = 2
    for group in t.all_groups:
        t.finish_transfer(10 + group)
    return t


def _evicted(t: Sound) -> None:
    """x takes all the pool, a's blocks with it, and leaves."""
    t.add("x", R[:3])
    t.drop_key(1), t.hold("x", 0, 1)
    t.run(2, Part("x", 3), x=35)
    t.number = 3
    t.drop_key(2), t.hold("x", 1, 2)
    t.run(3, Part("x"), x=36)
    t.run(4, Part("x"), x=37)
    t.end_of("x")


def stored_and_loaded() -> Sound:
    """b's prompt begins as a's did: what another request stored comes back, and then b runs."""
    t = _stored()
    _evicted(t)
    t.number = 5
    t.add("b", (*P, *Q, 41)), t.add("c", R)
    t.lookup("b", ["k0"], [])
    t.hold_all("b", [3, 4, 5]), t.hold_all("c", [0])
    t.load(20, "b", [1, 0], ["k0", "k1"], 3, 4)
    t.run(5, Part("c", 4), c=38)
    t.number = 6
    t.loaded(20, "b", ["k0", "k1"], 3, 4)
    t.publish("b", 0, "k0"), t.publish("b", 1, "k1")
    t.hold_all("c", [None, 1])
    t.run(6, Part("b"), Part("c"), b=42, c=39)
    t.end_of("b"), t.end_of("c")
    return t.done()


def loaded_behind_a_hit() -> Sound:
    """The device has the first block, host memory the second."""
    t = _stored()
    t.add("x", R)
    t.drop_key(2), t.hold("x", 0, 2)
    t.run(2, Part("x", 4), x=35)
    t.number = 3
    t.add("b", (*P, *Q, 41))
    t.lookup("b", ["k0", "k1"], [1])
    t.hit("b", 0, keys=["k0"])
    t.hold_all("b", [None, 3, 4])
    t.load(20, "b", [1], ["k1"], 3)
    t.hold_all("x", [None, 5])
    t.run(3, Part("x"), x=36)
    t.number = 4
    t.loaded(20, "b", ["k1"], 3)
    t.publish("b", 1, "k1")
    t.run(4, Part("b"), Part("x"), b=42, x=37)
    t.end_of("b"), t.end_of("x")
    return t.done()


def revived_while_it_is_stored() -> Sound:
    """Somebody shares the block before it has reached host memory."""
    t = Sound(blocks=6)
    t.number = 1
    t.add("a", P), t.hold_all("a", [1])
    t.run(1, Part("a", 4), a=2)
    t.publish("a", 0, "k0")
    t.end_of("a", "eos")
    t.store(10, [0], 1)
    t.number = 2
    t.add("b", (*P, 41))
    t.lookup("b", ["k0"], [1])
    t.hit("b", 0, keys=["k0"]), t.hold_all("b", [None, 3])
    t.run(2, Part("b"), b=42)
    t.number = 3
    t.finish_transfer(10)
    t.run(3, Part("b"), b=43)
    t.end_of("b")
    return t.done()


def a_store_that_is_cancelled() -> Sound:
    """What was not stored is not there: the next one computes it again."""
    t = Sound(blocks=6)
    t.number = 1
    t.add("a", P), t.hold_all("a", [1])
    t.run(1, Part("a", 4), a=2)
    t.publish("a", 0, "k0")
    t.end_of("a", "eos")
    t.store(10, [0], 1)
    t.number = 2
    t.finish_transfer(10, "cancelled")
    t.drop_key(1)
    t.add("b", (*P, 41)), t.lookup("b", ["k0"], [])
    t.hold_all("b", [1, 3])
    t.run(2, Part("b", 5), b=42)
    t.publish("b", 0, "k0")
    t.end_of("b")
    return t.done()


def a_load_that_fails() -> Sound:
    """The request computes what did not come."""
    t = _stored()
    _evicted(t)
    t.number = 5
    t.add("b", (*P, *Q, 41))
    t.lookup("b", ["k0"], [])
    t.hold_all("b", [3, 4, 5])
    t.load(20, "b", [1, 0], ["k0", "k1"], 3, 4)
    t.number = 6
    t.finish_transfer(20, "failed")
    t.run(6, Part("b", 9), b=42)
    t.publish("b", 0, "k0"), t.publish("b", 1, "k1")
    t.end_of("b")
    return t.done()


def aborted_while_it_loads() -> Sound:
    """The blocks are given up once the transfer is over."""
    t = _stored()
    _evicted(t)
    t.number = 5
    t.add("b", (*P, *Q, 41)), t.add("c", R)
    t.hold_all("b", [3, 4, 5]), t.hold_all("c", [0])
    t.load(20, "b", [1, 0], ["k0", "k1"], 3, 4)
    t.run(5, Part("c", 4), c=38)
    t.number = 6
    t.event("AbortRequested", request="b")
    t.say_finished("b", "aborted")
    t.hold_all("c", [None, 1])
    t.run(6, Part("c"), c=39)
    t.number = 7
    t.loaded(20, "b", ["k0", "k1"], 3, 4)
    t.drop_all("b")
    t.run(7, Part("c"), c=40)
    t.end_of("c")
    return t.done()


def loaded_in_both_groups() -> Sound:
    """A transfer a group; the window's group wants only what the next token sees."""
    t = _stored(groups=2, windows=[None, 4])
    t.add("x", R)
    for group in t.all_groups:
        t.drop_key(1, group), t.hold("x", 0, 1, group)
    t.run(2, Part("x", 4), x=35)
    t.number = 3
    for group in t.all_groups:
        t.drop_key(2, group), t.hold("x", 1, 2, group)
    t.run(3, Part("x"), x=36)
    t.end_of("x")
    t.number = 4
    t.add("b", (*P, *Q, 41))
    t.hold_all("b", [3, 4, 5], [None, 3, 4])
    t.load(20, "b", [1, 0], ["k0", "k1"], 3, 4)
    t.load(21, "b", [2], ["k1"], 3, group=1)
    t.number = 5
    t.loaded(20, "b", ["k0", "k1"], 3, 4)
    t.loaded(21, "b", ["k1"], 3, group=1)
    t.run(5, Part("b"), b=42)
    t.end_of("b")
    return t.done()


def scrubbed_when_freed() -> Sound:
    """What nobody wants is overwritten when it is freed; what is cached when its entry goes."""
    t = Sound(groups=2, windows=[None, None], blocks=4)
    t.number = 1
    t.add("a", (*P, 15)), t.hold_all("a", [0, 1], [2, 3])
    t.run(1, Part("a", 5), a=2)
    t.publish("a", 0, "k0"), t.publish("a", 0, "k0", group=1)
    t.say_finished("a", "eos")
    for group in t.all_groups:
        t.drop("a", 1, group), t.scrub((1, 3)[group], "nan", group)
        t.drop("a", 0, group)
    t.number = 2
    t.add("b", (*Q, 25))
    for group in t.all_groups:
        t.hold("b", 0, (1, 0)[group], group)
        cached = (0, 2)[group]
        t.drop_key(cached, group), t.scrub(cached, "nan", group), t.hold("b", 1, cached, group)
    t.run(2, Part("b", 5), b=26)
    t.end_of("b")
    return t.done()


def scrubbed_when_handed_out() -> Sound:
    """Zeroed each time; a copy on write fills what was zeroed just before."""
    t = Sound(blocks=6)
    t.number = 1
    t.add("a", (*P, 15, 16), sampling={"n": 2}), t.add("a/1", (*P, 15, 16), parent="a")
    for index, block in enumerate((1, 2)):
        t.hold("a", index, block), t.scrub(block, "zero")
    t.fork("a/1", "a", 6)
    t.run(1, Part("a", 6), **{"a": 17, "a/1": 18})
    t.number = 2
    source = t.places[0, "a"][1]
    t.hold("a", 1, 3), t.scrub(3, "zero")
    t.copy(source, 3, 2), t.copy_slots(source, 3, 2)
    t.drop_block("a", 1, source)
    t.run(2, Part("a"), Part("a/1"), **{"a": 19, "a/1": 20})
    t.end_of("a"), t.end_of("a/1")
    t.number = 3
    t.add("b", Q), t.hold("b", 0, 2), t.scrub(2, "zero")
    t.run(3, Part("b", 4), b=25)
    t.end_of("b")
    return t.done()


def handed_out_in_any_order() -> Sound:
    """The block freed last first, or one from the middle of the queue: whichever, it is legal."""
    t = Sound(blocks=5)
    t.number = 1
    t.add("a", P), t.hold_all("a", [0])
    t.add("b", Q), t.hold_all("b", [4])
    t.run(1, Part("a", 4), Part("b", 4), a=2, b=25)
    t.publish("a", 0, "k0")
    t.end_of("a", "eos")
    t.number = 2
    t.hold_all("b", [None, 0])  # freed last; its key goes
    t.run(2, Part("b"), b=26)
    t.number = 3
    t.add("c", R), t.hold_all("c", [2])
    t.run(3, Part("b"), Part("c", 4), b=27, c=35)
    t.end_of("b"), t.end_of("c")
    t.number = 4
    t.add("d", P), t.hold_all("d", [3])  # 0, 4 and 2 are in quarantine
    t.run(4, Part("d", 4), d=15)
    t.end_of("d")
    return t.done()


def _loaded_under_another_key(t: Sound) -> Line:
    """The keys of the load are exchanged: each block gets the other's content."""
    started = lines(t, "TransferStarted", transfer=20)[0]
    started["keys"] = started["keys"][::-1]
    return started


def _loaded_for_another_prompt(t: Sound) -> Line:
    """b's prompt differs from what was stored in its second token."""
    lines(t, "RequestAdded", request="b")[0]["prompt_tokens"][1] = 99
    return lines(t, "TransferStarted", transfer=20)[0]


def _loaded_for_another_tenant(t: Sound) -> Line:
    lines(t, "RequestAdded", request="b")[0]["tenant"] = "other"
    return lines(t, "TransferStarted", transfer=20)[0]


def _runs_before_it_is_loaded(t: Sound) -> Line:
    """b's row reads its blocks while the load is still under way."""
    written = lines(t, "SlotsWritten", write="transfer")[0]
    after = lines(t, "StepCompleted", step=6)[0]
    move(t, written, before=after)
    return lines(t, "InputsBuilt", step=6)[0]


def _read_after_the_failed_load(t: Sound) -> Line:
    """The engine believes the load that failed: it computes only what comes after."""
    scheduled = lines(t, "StepScheduled", step=6)[0]
    scheduled.update(computed=[8], scheduled=[1])
    built = lines(t, "InputsBuilt", step=6)[0]
    built.update(tokens=[41], query_lens=[1], positions=[8], slot_mapping=[20])
    lines(t, "MaskBuilt", step=6)[0]["query_lens"] = [1]
    lines(t, "SlotsWritten", step=6)[0].update(
        requests=["b"], positions=[8], tokens=[41], slots=[20]
    )
    return built


def _hit_of_what_was_evicted(t: Sound) -> Line:
    """The lookup still finds k0 on the device, in the block that x was handed."""
    looked = lines(t, "PrefixLookedUp", request="b")[0]
    looked["blocks"] = [1]
    return looked


def _scrubbed_between_its_steps(t: Sound) -> Line:
    """a's first block is zeroed although it holds what a has computed."""
    scrubbed = dict(lines(t, "BlockScrubbed", block=3)[0]) | {"block": 1}
    at = t.lines.index(lines(t, "StepScheduled", step=2)[0])
    t.lines.insert(at, scrubbed)
    return lines(t, "InputsBuilt", step=2)[0]


def _scrubbed_after_the_copy(t: Sound) -> Line:
    """The new block is zeroed once the copy is in it."""
    scrubbed = lines(t, "BlockScrubbed", block=3)[0]
    remove(t, scrubbed)
    at = t.lines.index(lines(t, "BlockCopied", destination=3)[0])
    t.lines.insert(at + 1, scrubbed)
    return lines(t, "BlockCopied", destination=3)[0]


def _freed_and_scrubbed_while_held(t: Sound) -> Line:
    """A block with two holders is freed, and so overwritten: the count is what was wrong."""
    before = lines(t, "StepScheduled", step=2)[0]
    freed = {"kind": "BlockFreed", "step": 2, "block": 1, "cached": False}
    insert(t, freed, before=before)
    insert(t, {"kind": "BlockScrubbed", "step": 2, "block": 1, "how": "nan"}, before=before)
    return freed


def _handed_out_with_its_key(t: Sound) -> Line:
    remove(t, lines(t, "BlockUnregistered", block=0)[0])
    return lines(t, "BlockAllocated", block=0, request="b")[0]


SCENES = (
    stored_and_loaded,
    loaded_behind_a_hit,
    revived_while_it_is_stored,
    a_store_that_is_cancelled,
    a_load_that_fails,
    aborted_while_it_loads,
    loaded_in_both_groups,
    scrubbed_when_freed,
    scrubbed_when_handed_out,
    handed_out_in_any_order,
)

TWINS = (
    (stored_and_loaded, _loaded_under_another_key, "contaminated", "identity", "F01"),
    (stored_and_loaded, _loaded_for_another_prompt, "contaminated", "identity", "F01"),
    (stored_and_loaded, _loaded_for_another_tenant, "contaminated", "identity", "F01"),
    (loaded_in_both_groups, _loaded_for_another_prompt, "contaminated", "identity", "F01"),
    (stored_and_loaded, _runs_before_it_is_loaded, "violated", "unwritten-read", "F13"),
    (a_load_that_fails, _read_after_the_failed_load, "violated", "unwritten-read", "F13"),
    (stored_and_loaded, _hit_of_what_was_evicted, "violated", "stale-index", "F02"),
    (scrubbed_when_handed_out, _scrubbed_between_its_steps, "violated", "unwritten-read", "F13"),
    (scrubbed_when_handed_out, _scrubbed_after_the_copy, "violated", "exclusive-write", "F19"),
    (scrubbed_when_handed_out, _freed_and_scrubbed_while_held, "violated", "ref-count", "F06"),
    (handed_out_in_any_order, _handed_out_with_its_key, "violated", "stale-index", "F02"),
)
