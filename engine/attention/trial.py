"""The trial at load: two prompts computed by the model alone must come out the same through us."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...recorder.events import Phase
from ..inputs import GroupInputs, StepInputs

BLOCK_SIZE = 16
NUM_BLOCKS = 4
LENGTHS = (6, 20)
"""One prompt inside a block, one over a block border."""

TABLES = np.asarray([[1, 2], [3, 0]])
"""In no order, so that a model that skips our tables can't pass."""


def prompts(vocab_size: int) -> list[list[int]]:
    numbers = np.random.default_rng(0)
    return [numbers.integers(0, vocab_size, length).tolist() for length in LENGTHS]


def prefill(prompts: Sequence[Sequence[int]]) -> StepInputs:
    """Both prompts but for their last tokens, packed."""
    return _inputs(prompts, [range(len(prompt) - 1) for prompt in prompts], "prefill")


def decode(prompts: Sequence[Sequence[int]]) -> StepInputs:
    """The last token of each prompt, upon what `prefill` wrote."""
    return _inputs(prompts, [range(len(p) - 1, len(p)) for p in prompts], "decode")


def _inputs(
    prompts: Sequence[Sequence[int]], positions: Sequence[range], phase: Phase
) -> StepInputs:
    rows = [np.asarray(span) for span in positions]
    slots = np.concatenate(
        [
            table[row // BLOCK_SIZE] * BLOCK_SIZE + row % BLOCK_SIZE
            for table, row in zip(TABLES, rows, strict=True)
        ]
    )
    return StepInputs(
        step=1,
        requests=tuple(f"trial-{row}" for row in range(len(rows))),
        phases=(phase,) * len(rows),
        query_lens=np.asarray([len(row) for row in rows]),
        seq_lens=np.asarray([span.stop for span in positions]),
        tokens=np.concatenate([np.asarray(p)[row] for p, row in zip(prompts, rows, strict=True)]),
        positions=np.concatenate(rows),
        groups=(GroupInputs(block_tables=TABLES, slot_mapping=slots),),
        logit_tokens=np.cumsum([len(row) for row in rows]) - 1,
        samples=(),
        drafts=np.zeros(len(rows), dtype=np.int64),
    )
