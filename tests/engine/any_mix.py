"""Random switches with random workloads that provoke them: small pools, prefixes that nearly
agree, late arrivals, aborts, samples, priorities."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from kvrewind.engine.canary.wordpiece import WordPiece
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.request import Prompt


def any_switches(rng: Random, block_size: int) -> dict[str, Any]:
    """Of every mechanism; about half of them off in each draw, so that they meet in all pairs."""
    layout = rng.choice(["packed", "packed", "padded-left", "padded-right", "dense"])
    flight = rng.choice([1, 1, 2])
    return {
        "block_size": block_size,
        "num_blocks": rng.randint(9, 20),
        "max_num_seqs": rng.randint(1, 6),
        "max_num_batched_tokens": rng.choice([4, 16, 64]),
        "continuous_batching": rng.random() < 0.75,
        "chunked_prefill": rng.random() < 0.7,
        "preemption": rng.random() < 0.75,
        "steps_in_flight": flight,
        "speculation": 0 if flight == 2 else rng.choice([0, 2, 4]),
        "prefix_cache": rng.random() < 0.8,
        "sharing": rng.choice(["tenant", "tenant", "global", "off"]),
        "granularity": rng.choice(["block", "block", "paragraph", "prompt", "sequence"]),
        "reuse": rng.choice(["first-freed", "last-freed", "quarantine=2"]),
        "scrub": rng.choice(["none", "zero", "nan"]),
        "scrub_at": rng.choice(["free", "allocation"]),
        "digests": rng.random() < 0.25,
        "host_blocks": rng.choice([0, 0, 4, 12]),
        "transfer_steps": rng.choice([1, 2, 3]),
        "layout": layout,
        "persistent_buffers": layout == "packed" and rng.random() < 0.5,
        "attention": rng.choice(["fast", "fast", "reference"]),
        "seed": rng.randint(0, 3),
    }


def any_prompts(rng: Random, block_size: int, max_tokens: int) -> list[Prompt]:
    """`max_tokens`: what fits into the pool, prompt and answer together."""
    base = [rng.randint(3, 9) for _ in range(4 * block_size)]
    prompts: list[Prompt] = [_answered()] if max_tokens > 60 else []
    for number in range(rng.randint(2, 7)):
        own = [rng.randint(3, 9) for _ in range(rng.randint(0, 2 * block_size))]
        tokens = (*base[: rng.randint(1, len(base))], *own)
        arrival = rng.randint(1, 8)
        prompts.append(
            Prompt(
                request=f"r{number}",
                prompt_tokens=tokens[: max_tokens - 1],
                max_new_tokens=rng.randint(
                    1, max(1, min(2 * block_size, max_tokens - len(tokens)))
                ),
                tenant=rng.choice([None, "t"]),
                adapter=rng.choice([None, None, "a"]),
                extra_keys=rng.choice([(), (), ((0, "salt"),), ((block_size, "image"),)]),
                priority=rng.choice([0, 0, 1, -1]),
                n=rng.choice([1, 1, 2, 3]),
                temperature=rng.choice([0.0, 0.0, 1.0]),
                pin=rng.random() < 0.1,
                retention=rng.choice([0, 0, 2]),
                arrival_step=arrival,
                abort_step=rng.choice([None, None, arrival + rng.randint(0, 8)]),
                ignore_eos=rng.random() < 0.8,
            )
        )
    return prompts


def _answered() -> Prompt:
    """One that comes to an end by itself."""
    text = "the passphrase is rolune . what is the passphrase ?"
    tokens = tuple(WordPiece.load().encode(text))
    return Prompt(request="asks", prompt_tokens=tokens, max_new_tokens=24)


def _longest_answer(block_size: int, max_tokens: int, prompt: tuple[int, ...]) -> int:
    return max(1, min(2 * block_size, max_tokens - len(prompt)))


def any_epochs(rng: Random) -> list[EpochChange]:
    what, adapter = rng.choice([("weights", None), ("adapter", "a"), ("pool", None)])
    change = EpochChange(what, "v2", adapter, step=rng.randint(2, 12))
    return rng.choice([[], [], [change]])


@dataclass(frozen=True)
class Mix:
    model: str
    config: EngineConfig
    prompts: list[Prompt]
    epochs: list[EpochChange]

    @classmethod
    def of(cls, seed: int) -> Mix:
        rng = Random(seed)
        size = rng.choice([2, 4, 8])
        config = EngineConfig(**any_switches(rng, size))
        usable = (config.num_blocks - config.quarantine) * size
        prompts, epochs = any_prompts(rng, size, usable), any_epochs(rng)
        return cls(rng.choice(["symbolic", "symbolic-windows"]), config, prompts, epochs)
