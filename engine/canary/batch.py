"""Contexts of different lengths as the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .leaks import Context


def collate(contexts: Sequence[Context]) -> dict[str, torch.Tensor]:
    """Keyword arguments of a transformers model, padded on the right.

    `input_ids`, `position_ids`: (B, S) int64. `attention_mask`: (B, 1, S, S) bool, true where a
    row sees a column; a padding row sees itself, so that its softmax is defined.
    """
    longest = max(len(context.tokens) for context in contexts)
    shape = (len(contexts), longest)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    mask = np.broadcast_to(np.eye(longest, dtype=bool), (*shape, longest)).copy()
    for row, context in enumerate(contexts):
        length = len(context.tokens)
        tokens[row, :length] = context.tokens
        positions[row, :length] = context.positions
        mask[row, :length, :length] = context.visible
    return {
        "input_ids": torch.from_numpy(tokens),
        "position_ids": torch.from_numpy(positions),
        "attention_mask": torch.from_numpy(mask[:, None]),
    }
