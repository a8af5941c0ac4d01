"""The trial at load: two prompts computed by the model alone must come out the same through us."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...recorder.events import Phase
from ..inputs import GroupInputs, IntArray, StepInputs

BLOCK_SIZE = 16
NUM_BLOCKS = 4
LENGTHS = (6, 20)
"""One prompt inside a block, one over a block border."""

TABLES = np.asarray([[1, 2], [3, 0]])
"""In no order, so that a model that skips our tables can't pass."""

Groups = Sequence[dict[str, Any]]
"""As `traits.kv_groups` gives them; none while it isn't known what the layers hand over."""


def prompts(vocab_size: int) -> list[list[int]]:
    numbers = np.random.default_rng(0)
    return [numbers.integers(0, vocab_size, length).tolist() for length in LENGTHS]


BOTH = (0, 1)


def prefill(
    prompts: Sequence[Sequence[int]], groups: Groups = (), chosen: Sequence[int] = BOTH
) -> StepInputs:
    """The chosen prompts but for their last tokens, packed."""
    return _inputs(prompts, [range(len(p) - 1) for p in prompts], "prefill", groups, chosen)


def decode(
    prompts: Sequence[Sequence[int]], groups: Groups = (), chosen: Sequence[int] = BOTH
) -> StepInputs:
    """The last token of each chosen prompt, upon what `prefill` wrote."""
    return _inputs(prompts, [range(len(p) - 1, len(p)) for p in prompts], "decode", groups, chosen)


def _inputs(
    prompts: Sequence[Sequence[int]],
    positions: Sequence[range],
    phase: Phase,
    groups: Groups,
    chosen: Sequence[int],
) -> StepInputs:
    prompts, positions = [prompts[n] for n in chosen], [positions[n] for n in chosen]
    tables = TABLES[list(chosen)]
    rows = [np.asarray(span) for span in positions]
    query_lens = np.asarray([len(row) for row in rows])
    return StepInputs(
        step=1,
        requests=tuple(f"trial-{row}" for row in range(len(rows))),
        phases=(phase,) * len(rows),
        query_lens=query_lens,
        seq_lens=np.asarray([span.stop for span in positions]),
        tokens=np.concatenate([np.asarray(p)[row] for p, row in zip(prompts, rows, strict=True)]),
        positions=np.concatenate(rows),
        groups=tuple(_group(group, rows, tables) for group in groups),
        logit_tokens=np.cumsum(query_lens) - 1,
        samples=(),
        drafts=np.zeros_like(query_lens),
    )


def _group(group: dict[str, Any], rows: Sequence[IntArray], tables: IntArray) -> GroupInputs:
    slots = [
        table[row // BLOCK_SIZE] * BLOCK_SIZE + row % BLOCK_SIZE
        for table, row in zip(tables, rows, strict=True)
    ]
    return GroupInputs(
        block_tables=tables,
        slot_mapping=np.concatenate(slots),
        layers=tuple(group["layers"]),
        window=group.get("window"),
    )
