"""What a run is asked to do: prompts, and the switches that they are meant for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

from ..recorder.errors import BadInput
from .canary.prompts import (
    SYSTEM,
    SYSTEM_SECOND_BLOCK,
    CanaryRequest,
    Question,
    filler,
    passphrase,
    render,
)
from .request import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpec:
    """One request of a workload or a line of a prompts file, before it is tokenized.

    Either `prompt` (text) or `prompt_tokens`.
    """

    request: str
    prompt: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    max_new_tokens: int | None = None
    tenant: str | int | None = None
    session: str | int | None = None
    external_id: str | int | None = None
    passphrase: str | None = None
    arrival_step: int = 1
    abort_step: int | None = None
    ignore_eos: bool = False

    def tokenized(self, encode: Callable[[str], list[int]], max_new_tokens: int) -> Prompt:
        """`max_new_tokens` serves where the spec has none of its own."""
        tokens = self.prompt_tokens
        if tokens is None:
            tokens = tuple(encode(self.prompt or ""))
        passed_on = {f.name: getattr(self, f.name) for f in fields(self) if f.name in _SHARED}
        limit = self.max_new_tokens or max_new_tokens
        return Prompt(prompt_tokens=tokens, max_new_tokens=limit, **passed_on)


_SHARED = {f.name for f in fields(Prompt)} - {"prompt_tokens", "max_new_tokens"}


@dataclass(frozen=True, slots=True)
class Workload:
    """`switches` are the engine's, where the workload needs others than the defaults."""

    name: str
    what: str
    specs: tuple[PromptSpec, ...]
    switches: Mapping[str, Any] = field(default_factory=dict)


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


SCENARIOS: Mapping[str, Callable[[int], Workload]] = {"default": default_workload}
"""Workloads by name, made from a seed; the first is what `record` runs unasked."""


def scenario_named(name: str, seed: int) -> Workload:
    """Raises `BadInput` with the names that exist."""
    if name not in SCENARIOS:
        known = ", ".join(SCENARIOS)
        raise BadInput(f"there is no scenario {name!r}; known: {known}")
    return SCENARIOS[name](seed)
