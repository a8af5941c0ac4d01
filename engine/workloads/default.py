"""The workload that `record` runs unasked: eight customers of the canary."""

from __future__ import annotations

from random import Random

from ..canary.prompts import (
    SYSTEM,
    SYSTEM_SECOND_BLOCK,
    CanaryRequest,
    Question,
    filler,
    passphrase,
    render,
)
from .spec import PromptSpec, Workload


def default_workload(seed: int = 0) -> Workload:
    """Eight customers with a passphrase each, in a pool that is a little too small for them.

    It holds the situations in which faults of a paged cache show: an answer asked for twice with
    others in between (r0, r1, r8), a prompt that begins with the second block of everybody's
    system prompt (r5), long holders beside early finishers of one prefix (r0, r4), and decoding
    that outgrows the pool, so that somebody is preempted.
    """
    rng = Random(seed)
    words = [passphrase(rng) for _ in range(8)]
    # request, passphrase, arrival step, filler tokens, question, system prompt
    plan: tuple[tuple[str, str, int, int, Question, str], ...] = (
        ("r0", words[0], 1, 0, "four-times", SYSTEM),
        ("r1", words[1], 2, 0, "once", SYSTEM),
        ("r2", words[2], 2, 4, "once", SYSTEM),
        ("r3", words[3], 3, 0, "once", SYSTEM),
        ("r4", words[4], 3, 5, "four-times", SYSTEM),
        ("r5", words[5], 5, 0, "once", SYSTEM_SECOND_BLOCK),
        ("r6", words[6], 6, 4, "once", SYSTEM),
        ("r7", words[7], 7, 0, "once", SYSTEM),
        ("r8", words[0], 20, 0, "once", SYSTEM),
    )
    specs = tuple(
        PromptSpec(
            request=name,
            prompt=render(CanaryRequest(word, system, filler(rng, extra), question)),
            passphrase=word,
            arrival_step=step,
            max_new_tokens=36 if question == "four-times" else 16,
        )
        for name, word, step, extra, question, system in plan
    )
    return Workload(
        name="default",
        what="eight customers, one system prompt, a pool that is a little too small",
        specs=specs,
        switches={"num_blocks": 22, "max_num_seqs": 8},
    )
