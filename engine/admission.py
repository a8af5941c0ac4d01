"""Which requests could never be served, so that they are refused before the first step."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from ..recorder.errors import BadInput
from .config import EngineConfig
from .request import Prompt
from .runner import ModelCard


class PromptRefused(BadInput):
    """A request that could never be served."""


class UnknownRequest(BadInput):
    """Nobody ever handed in a request of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no request {name!r}; name one that was handed in")


def refuse_impossible(
    prompts: Sequence[Prompt],
    config: EngineConfig,
    card: ModelCard,
    *,
    known: Container[str] = (),
) -> None:
    """Raises `PromptRefused` for the first prompt that can't be served, saying why.

    `known` are the names already taken.
    """
    names: set[str] = set()
    for prompt in prompts:
        for name in (prompt.request, *sample_names(prompt)):
            if name in names or name in known:
                raise PromptRefused(
                    f"request names must be unique; {name!r} comes twice; rename one"
                )
            names.add(name)
        _refuse_values(prompt)
        _refuse_tokens(prompt, card)
        _refuse_lengths(prompt, config, card)


def sample_names(prompt: Prompt) -> tuple[str, ...]:
    """What the samples of a prompt are called besides itself: r0/1, r0/2, ..."""
    return tuple(f"{prompt.request}/{i}" for i in range(1, prompt.n))


def _refuse_values(prompt: Prompt) -> None:
    wrong = {
        "max_new_tokens must be at least 1": prompt.max_new_tokens < 1,
        "n must be at least 1": prompt.n < 1,
        "temperature must be 0 or more": not 0 <= prompt.temperature < math.inf,
        "top_k must be 0 or more": prompt.top_k < 0,
        "top_p must be above 0 and at most 1": not 0 < prompt.top_p <= 1,
        "arrival_s must be 0 or more": not 0 <= (prompt.arrival_s or 0) < math.inf,
        "the first position of an extra key must be 0 or more": any(
            position < 0 for position, _ in prompt.extra_keys
        ),
    }
    for why, is_so in wrong.items():
        if is_so:
            raise PromptRefused(f"request {prompt.request!r}: {why}")


def _refuse_tokens(prompt: Prompt, card: ModelCard) -> None:
    name, tokens = prompt.request, prompt.prompt_tokens
    if not tokens:
        raise PromptRefused(f"request {name!r} has an empty prompt; give it at least one token")
    outside = [t for t in tokens if not 0 <= t < card.vocab_size]
    if outside:
        raise PromptRefused(
            f"request {name!r} has token {outside[0]}, but {card.name} knows only 0 to "
            f"{card.vocab_size - 1}; tokenize it for this model"
        )


def _refuse_lengths(prompt: Prompt, config: EngineConfig, card: ModelCard) -> None:
    """By itself: samples of one prompt, like any requests, can wait for each other."""
    name, tokens = prompt.request, prompt.prompt_tokens
    longest = len(tokens) + prompt.max_new_tokens - 1  # the last token's KV is never written
    blocks = -(-longest // config.block_size)
    usable = config.num_blocks - config.quarantine
    if blocks > usable:
        kept = f" and keeps {config.quarantine} in quarantine" if config.quarantine else ""
        raise PromptRefused(
            f"request {name!r} needs {blocks} blocks for {len(tokens)} prompt tokens and "
            f"{prompt.max_new_tokens} new ones, but the pool has {config.num_blocks}{kept}; "
            "raise --num-blocks, or shorten it"
        )
    if card.max_positions is not None and longest > card.max_positions:
        raise PromptRefused(
            f"request {name!r} reaches {longest} tokens, but {card.name} has only "
            f"{card.max_positions} positions; shorten it"
        )
