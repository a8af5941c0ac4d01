"""Which requests could never be served, so that they are refused before the first step."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..recorder.errors import BadInput
from .config import EngineConfig
from .request import Prompt
from .runner import ModelCard


class PromptRefused(BadInput):
    """A request that could never be served."""


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
        if prompt.request in names or prompt.request in known:
            raise PromptRefused(
                f"request names must be unique; {prompt.request!r} comes twice; rename one"
            )
        names.add(prompt.request)
        _refuse(prompt, config, card)


def _refuse(prompt: Prompt, config: EngineConfig, card: ModelCard) -> None:
    name, tokens = prompt.request, prompt.prompt_tokens
    if not tokens:
        raise PromptRefused(f"request {name!r} has an empty prompt; give it at least one token")
    if prompt.max_new_tokens < 1:
        raise PromptRefused(f"request {name!r}: max_new_tokens must be at least 1")
    outside = [t for t in tokens if not 0 <= t < card.vocab_size]
    if outside:
        raise PromptRefused(
            f"request {name!r} has token {outside[0]}, but {card.name} knows only 0 to "
            f"{card.vocab_size - 1}; tokenize it for this model"
        )
    longest = len(tokens) + prompt.max_new_tokens - 1  # the last token's KV is never written
    blocks = -(-longest // config.block_size)
    if blocks > config.num_blocks:
        raise PromptRefused(
            f"request {name!r} needs {blocks} blocks for {len(tokens)} prompt tokens and "
            f"{prompt.max_new_tokens} new ones, but the pool has {config.num_blocks}; "
            "raise --num-blocks, or shorten it"
        )
    if card.max_positions is not None and longest > card.max_positions:
        raise PromptRefused(
            f"request {name!r} reaches {longest} tokens, but {card.name} has only "
            f"{card.max_positions} positions; shorten it"
        )
