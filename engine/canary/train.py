"""Trains the bundled canary model: `python -m kvrewind.engine.canary.train --steps N --out DIR`.

One thread, fixed seeds: on one machine and one version of torch, the same weights each time.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from .batch import collate
from .curriculum import IGNORED, Curriculum, Example, Kind
from .tokenizer import save_tokenizer
from .vocabulary import EOS, PAD, pieces

STEPS = 2000
BATCH = 32
SEED = 20240229
LEARNING_RATE = 1e-3  # at 3e-3 the model doesn't learn to copy
FIRST_STAGE = 3 / 4
"""Share of the steps at a constant rate, without crowds; the optimiser starts anew after it."""
REPEATS_SHARE = 0.4
"""Share of the first stage, at its start, that sees repeated random tokens only."""


def canary_config() -> LlamaConfig:
    vocabulary = pieces()
    return LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary.index(EOS),
        pad_token_id=vocabulary.index(PAD),
    )


def train(steps: int, seed: int = SEED) -> Iterator[tuple[int, float, LlamaForCausalLM]]:
    """Yields (step, loss, model) after each of `steps` optimiser steps; the last is the result.

    Raises ValueError when `steps` is not positive.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    torch.manual_seed(seed)
    model = LlamaForCausalLM(canary_config())
    first = round(FIRST_STAGE * steps)
    for step, loss in _stage(model, Curriculum(seed), first, _first_kind, _hold):
        yield step, loss, model
    for step, loss in _stage(model, Curriculum(seed + 1), steps - first, _second_kind, _decay):
        yield first + step, loss, model


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write weights, configuration and tokenizer; `folder` is made when it isn't there."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    save_tokenizer(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kvrewind.engine.canary.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.perf_counter()
    for step, loss, model in train(options.steps, options.seed):
        if step % 50 == 0 or step == options.steps:
            seconds = time.perf_counter() - began
            print(f"step {step}/{options.steps} loss {loss:.4f} {seconds:.0f} s", file=sys.stderr)
        if step == options.steps:
            save(model, options.out)
    return 0


def _stage(
    model: LlamaForCausalLM,
    curriculum: Curriculum,
    steps: int,
    kind_of: Callable[[int, int], Kind],
    rate_of: Callable[[int, int], float],
) -> Iterator[tuple[int, float]]:
    """Yields (step, loss), steps from 1."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_of(step, steps))
    for step in range(1, steps + 1):
        kind = kind_of(step, steps)
        loss = _loss(model, [curriculum.example(kind) for _ in range(BATCH)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        yield step, loss.item()


def _first_kind(step: int, steps: int) -> Kind:
    if step <= REPEATS_SHARE * steps or step % 12 == 0:
        return "repeats"
    return "leaky" if step % 5 < 2 else "plain"


def _second_kind(step: int, steps: int) -> Kind:
    kinds: tuple[Kind, ...] = ("leaky", "plain", "crowd", "plain", "leaky", "crowd", "plain")
    return kinds[step % len(kinds)]


def _hold(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / max(1, min(50, steps // 10)))


def _decay(step: int, steps: int) -> float:
    """Warm up, then a cosine down to 2 %."""
    return _hold(step, steps) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _loss(model: LlamaForCausalLM, examples: list[Example]) -> torch.Tensor:
    """Mean cross entropy over the rows that have a target."""
    batch = collate([example.context for example in examples])
    targets = torch.full(batch["input_ids"].shape, IGNORED)
    for row, example in enumerate(examples):
        targets[row, : len(example.targets)] = torch.from_numpy(example.targets)
    logits = model(**batch, use_cache=False).logits
    rows = targets != IGNORED
    return torch.nn.functional.cross_entropy(logits[rows], targets[rows])


if __name__ == "__main__":
    sys.exit(main())
