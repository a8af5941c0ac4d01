"""What to do about what was found: by verdict, and by class of fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Advice(NamedTuple):
    """`wrong`: what goes wrong in this class. `look`: what to look at and to mend. `meanwhile`:
    what keeps requests apart until then."""

    name: str
    wrong: str
    look: str
    meanwhile: str | None = None


VERDICTS: Mapping[str, str] = {
    "contaminated": "A request read what another one wrote, without a proved right to it.",
    "violated": "A rule of the cache broke; nothing that belongs to another request was read.",
    "unexplained": "Something differs, and every read that was logged is legal: a reader or a "
    "writer that nobody logs, such as a kernel or the hardware.",
    "unstable": "Two runs of the same recording disagree.",
    "incomplete": "Nothing was found, but something that is needed was not recorded.",
    "numeric-drift": "Outputs differ in a near tie of floating point; every read is legal.",
    "clean": "Every read was of the request's own tokens, or of a proved share.",
}

_NO_PREFIX_CACHE = "Switch the prefix cache off: it costs time, and shares nothing."
_ONE_AT_A_TIME = "Run one request in a step."
_NO_OVERLAP = "Let a step complete before the next one is scheduled."

ADVICE: Mapping[str, Advice] = {
    "F01": Advice(
        "a share without equal content",
        "A block was shared with a request whose tokens, position, tenant, adapter, epoch or extra "
        "keys are not those that it was computed from.",
        "See that the key of a block covers the key of the block before it, all of its own tokens, "
        "and whatever else colours them (tenant, adapter, images); compare the tokens at a hit.",
        _NO_PREFIX_CACHE,
    ),
    "F02": Advice(
        "a stale index entry",
        "The prefix index still named a block that had been handed out for something else.",
        "Take all keys of a block out of the index in the transition that hands the block out.",
        _NO_PREFIX_CACHE,
    ),
    "F03": Advice(
        "published too early",
        "A block could be found in the prefix index before its tokens had been computed.",
        "Register a block when the pass that filled it has completed, or hold its sharers back.",
        _NO_PREFIX_CACHE,
    ),
    "F04": Advice(
        "freed in flight",
        "A block was freed while a step that uses it was still on the device.",
        "Let a step hold a reference to each of its blocks until it completes.",
        _NO_OVERLAP,
    ),
    "F05": Advice(
        "reused during a transfer",
        "A block was freed, handed out or read while a transfer from or into it was under way.",
        "Let a transfer hold its blocks on both sides until it has finished or was cancelled.",
        "Switch the offloading of blocks off.",
    ),
    "F06": Advice(
        "a wrong count",
        "The number of references of a block was not the number of its holders.",
        "Pair each acquire with one release; free at zero and nowhere else; look at the paths of "
        "aborts, forks and preemptions first.",
        _NO_PREFIX_CACHE,
    ),
    "F07": Advice(
        "a dangling table entry",
        "A block table listed a block that the request no longer held.",
        "Cut the table in the transition that gives the blocks up, also in the device's copy.",
        "Give the pool enough blocks that nothing is preempted.",
    ),
    "F08": Advice(
        "a wrong slot",
        "A token was written to a slot that its position and its block table don't give.",
        "Recompute slot = table[p // block_size] * block_size + p % block_size from the true "
        "position, also for chunks, drafts and copies.",
        _ONE_AT_A_TIME,
    ),
    "F09": Advice(
        "padding that writes",
        "A pad or dummy row wrote into a block of the pool.",
        "Point the slots of pads at -1 or at a block that is never handed out.",
        "Switch captured graphs and padded batches off.",
    ),
    "F10": Advice(
        "a graph over old inputs",
        "A captured graph was replayed over a buffer that held the inputs of another step.",
        "Copy every input into the captured buffer before each replay, with its stride.",
        "Switch captured graphs off.",
    ),
    "F11": Advice(
        "rows out of step",
        "Arrays of one step disagree about which row is whose.",
        "Build all arrays of a step from one order of rows; where a row is removed or moved, do so "
        "in all of them.",
        _ONE_AT_A_TIME,
    ),
    "F12": Advice(
        "a buffer rebuilt too early",
        "A staging buffer was filled anew while the device still read it.",
        "Use two buffers in turn, or wait for the event that says the copy is done.",
        _NO_OVERLAP,
    ),
    "F13": Advice(
        "a read of what was never written",
        "A row read slots that nobody had written since the block was handed out.",
        "Count as computed only what exists: look at sequence lengths after hits, loads and "
        "rejected drafts.",
        "Clear blocks when they are handed out, so that nothing old can be read.",
    ),
    "F14": Advice(
        "a wrong mask",
        "A query saw keys that it must not see, or not those that it must.",
        "Check the axis and the offset of the mask, what its values mean, its fill, and that it is "
        "applied before the softmax.",
        _ONE_AT_A_TIME,
    ),
    "F15": Advice(
        "a wrong position",
        "A token was given a position that is not its index in its request.",
        "Count positions from the request's own tokens: look at chunks, hits and preemptions.",
    ),
    "F16": Advice(
        "rejected drafts that stay",
        "Draft tokens that were rejected still counted, were registered or were read.",
        "Set the computed tokens back to the accepted ones before anything else sees the request.",
        "Switch speculation off.",
    ),
    "F17": Advice(
        "a share across a change of weights",
        "A block computed with other weights, or another version of an adapter, was shared.",
        "Clear the prefix index, or put the epoch into the key, whenever weights change.",
        _NO_PREFIX_CACHE,
    ),
    "F18": Advice(
        "a wrong block from another tier",
        "What was loaded is not what was stored under that key.",
        "Compare a digest at store and at load; never let two stores share a place.",
        "Switch the offloading of blocks off.",
    ),
    "F19": Advice(
        "a write into a shared block",
        "A request wrote into a block that others held too, or a copy was late or incomplete.",
        "Copy before the first write into a block with several holders, and let the step wait for "
        "the copy.",
        "Switch parallel samples and the prefix cache off.",
    ),
    "F20": Advice(
        "not explained by the log",
        "No logged read accounts for what was seen.",
        "Look below the log: kernels, their launch parameters, memory, hardware. Record digests of "
        "blocks, run in exact mode, and compare.",
    ),
}
