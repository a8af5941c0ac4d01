"""For whom a block was computed: tenants, adapters, extra keys by position, and epochs."""

from __future__ import annotations

from typing import Any

from breaking import insert, lines
from sound import Line, Part, Sound, numbers

P, Q = tuple(numbers(11)), tuple(numbers(21))


def _first(t: Sound, name: str = "a", **who: Any) -> None:
    """a computes P and Q in blocks 1 and 2, and both are published."""
    t.number = 1
    t.add(name, P + Q, **who)
    t.hold_all(name, [1, 2])
    t.run(1, Part(name, 8), **{name: 51})
    for index in range(2):
        t.publish(name, index, f"k{index}", extra_keys=_keys_in(who, index))
    t.number = 2


def _keys_in(who: dict[str, Any], block: int) -> list[Any] | None:
    placed = who.get("extra_keys") or []
    return [pair for pair in placed if pair[0] // 4 == block] or None


def _second(t: Sound, hits: int, name: str = "b", **who: Any) -> None:
    """b has the same tokens and one more, and shares the leading blocks."""
    t.add(name, (*P, *Q, 41), **who)
    t.lookup(name, ["k0", "k1", "k2"][: hits + 1], [1, 2][:hits])
    t.hit(name, *range(hits), keys=["k0", "k1"][:hits])
    t.hold_all(name, [*[None] * hits, *range(3, 6 - hits)])
    t.hold_all("a", [None, None, 6])
    t.run(2, Part("a"), Part(name, 9 - hits * 4), **{"a": 52, name: 42})
    t.end_of("a"), t.end_of(name)


def the_same_adapter() -> Sound:
    t = Sound(blocks=8)
    _first(t, adapter="lora"), _second(t, 2, adapter="lora")
    return t.done()


def another_adapter() -> Sound:
    """Nothing is shared: b computes everything in its own blocks."""
    t = Sound(blocks=8)
    _first(t, adapter="lora"), _second(t, 0, adapter="other")
    return t.done()


def another_tenant_where_sharing_is_global() -> Sound:
    t = Sound(blocks=8, sharing="global")
    _first(t, tenant="one"), _second(t, 2, tenant="two")
    return t.done()


def the_same_image() -> Sound:
    t = Sound(blocks=8)
    _first(t, extra_keys=[[2, "image"], [6, "sound"]])
    _second(t, 2, extra_keys=[[6, "sound"], [2, "image"]])
    return t.done()


def an_image_behind_the_shared_block() -> Sound:
    """An extra key colours what comes from its position on: the block before it is shared."""
    t = Sound(blocks=8)
    _first(t, extra_keys=[[5, "image"]]), _second(t, 1, extra_keys=[[5, "other image"]])
    return t.done()


def a_salt_from_the_beginning() -> Sound:
    """A plain key counts from position 0."""
    t = Sound(blocks=8)
    _first(t, extra_keys=[[0, "salt"]]), _second(t, 2, extra_keys=["salt"])
    return t.done()


def reloaded_weights() -> Sound:
    """The index is emptied; a goes on over the change, and what it finishes stays its own."""
    t = Sound(blocks=8)
    _first(t)
    t.event("EpochChanged", epoch="weights-2", what="weights")
    t.drop_key(1, reason="reset"), t.drop_key(2, reason="reset")
    t.add("b", (*P, *Q, 41))
    t.lookup("b", ["e0"], [])
    t.hold_all("b", [3, 4, 5]), t.hold_all("a", [None, None, 6])
    t.run(2, Part("a"), Part("b", 9), a=52, b=42)
    t.publish("b", 0, "e0"), t.publish("b", 1, "e1")
    t.number = 3
    t.add("c", (*P, *Q, 61))
    t.lookup("c", ["e0", "e1"], [3, 4])
    t.hit("c", 0, 1, keys=["e0", "e1"]), t.hold_all("c", [None, None, 7])
    t.run(3, Part("a"), Part("b"), Part("c"), a=53, b=43, c=62)
    t.end_of("a"), t.end_of("b"), t.end_of("c")
    return t.done()


def another_adapters_reload() -> Sound:
    """Only what was computed with that adapter leaves the index."""
    t = Sound(blocks=8)
    _first(t, adapter="lora")
    t.event("EpochChanged", epoch=2, what="adapter", adapter="other")
    _second(t, 2, adapter="lora")
    return t.done()


def an_adapters_reload() -> Sound:
    t = Sound(blocks=8)
    _first(t, adapter="lora")
    t.event("EpochChanged", epoch=2, what="adapter", adapter="lora")
    t.drop_key(1, reason="reset"), t.drop_key(2, reason="reset")
    _second(t, 0, adapter="lora")
    return t.done()


def a_new_pool() -> Sound:
    """Nothing that was written is there any more: who runs is computed again."""
    t = Sound(blocks=8)
    _first(t)
    t.event("EpochChanged", epoch=2, what="pool")
    t.slots.clear()
    t.drop_key(1, reason="reset"), t.drop_key(2, reason="reset")
    t.preempt("a")
    t.hold_all("a", [0, 3, 4])
    t.run(2, Part("a", 9), a=52)
    t.publish("a", 0, "k0")
    t.number = 3
    t.add("b", (*P, 41))
    t.lookup("b", ["k0"], [0])
    t.hit("b", 0, keys=["k0"]), t.hold_all("b", [None, 5])
    t.run(3, Part("a"), Part("b"), a=53, b=42)
    t.end_of("a"), t.end_of("b")
    return t.done()


def _other(t: Sound, **who: Any) -> Line:
    """b is another than the events say."""
    lines(t, "RequestAdded", request="b")[0].update(who)
    return lines(t, "BlockShared", request="b")[0]


def _shared_over_adapters(t: Sound) -> Line:
    return _other(t, adapter="other")


def _shared_over_tenants(t: Sound) -> Line:
    """Sharing was not global."""
    lines(t, "RunStarted")[0]["config"]["sharing"] = "tenant"
    return lines(t, "BlockShared", request="b")[0]


def _shared_over_images(t: Sound) -> Line:
    return _other(t, extra_keys=[[6, "sound"], [2, "other image"]])


def _key_at_another_position(t: Sound) -> Line:
    """The same image, one token later."""
    return _other(t, extra_keys=[[6, "sound"], [3, "image"]])


def _second_block_over_images(t: Sound) -> Line:
    """Only the second block is coloured: the first share was right."""
    _other(t, extra_keys=[[6, "other sound"], [2, "image"]])
    return lines(t, "BlockShared", request="b")[1]


def _without_its_salt(t: Sound) -> Line:
    return _other(t, extra_keys=None)


def _read_after_the_pool_was_new(t: Sound) -> Line:
    """The pool is new once more before the last step, and everybody goes on."""
    insert(
        t,
        {"kind": "EpochChanged", "step": 3, "epoch": 3, "what": "pool"},
        before=lines(t, "StepScheduled", step=3)[0],
    )
    return lines(t, "InputsBuilt", step=3)[0]


def _entry_of_what_was_reset(t: Sound) -> Line:
    """b's lookup takes a hit under a key that left the index with the reload."""
    share = lines(t, "BlockShared", request="c")[0]
    share["key"] = "k0"
    return share


SCENES = (
    the_same_adapter,
    another_adapter,
    another_tenant_where_sharing_is_global,
    the_same_image,
    an_image_behind_the_shared_block,
    a_salt_from_the_beginning,
    reloaded_weights,
    another_adapters_reload,
    an_adapters_reload,
    a_new_pool,
)

TWINS = (
    (the_same_adapter, _shared_over_adapters, "contaminated", "identity", "F01"),
    (another_adapters_reload, _shared_over_adapters, "contaminated", "identity", "F01"),
    (
        another_tenant_where_sharing_is_global,
        _shared_over_tenants,
        "contaminated",
        "identity",
        "F01",
    ),
    (the_same_image, _shared_over_images, "contaminated", "identity", "F01"),
    (the_same_image, _key_at_another_position, "contaminated", "identity", "F01"),
    (the_same_image, _second_block_over_images, "contaminated", "identity", "F01"),
    (a_salt_from_the_beginning, _without_its_salt, "contaminated", "identity", "F01"),
    (reloaded_weights, _entry_of_what_was_reset, "violated", "stale-index", "F02"),
    (a_new_pool, _read_after_the_pool_was_new, "violated", "unwritten-read", "F13"),
)
