"""Contexts that hold more than one request: what each row sees when a cache is broken.

Used to train the canary and to measure it. Nothing here stands for one particular fault: it is
what faults have in common, seen from the victim's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .prompts import BLOCK_SIZE

View = Literal["beside", "instead", "block"]
"""Foreign tokens beside one's own, in place of all one's own, or a block in place of a block."""

Mutual = Literal["no", "victim", "everyone"]
"""Whom the others see too: nobody, the victim, or the victim and each other."""


@dataclass(frozen=True, slots=True)
class Leak:
    """How a victim's view is broken, and how much of its answer was said before that."""

    view: View
    said: int | None  # tokens of the answer; None: broken from the first row of the prompt on
    shown: np.ndarray  # (foreign tokens,) bool
    hidden: np.ndarray  # (victim's prompt,) bool
    causal: bool = False  # of the foreign tokens only those at earlier positions
    mutual: Mutual = "no"
    itself: bool = True  # a row sees its own token, whatever else is hidden


@dataclass(frozen=True, slots=True)
class Context:
    """Packed tokens of all requests, the victim's last.

    `tokens`, `positions`: (S,) int64, positions of each request from 0. `visible`: (S, S) bool,
    row sees column.
    """

    tokens: np.ndarray
    positions: np.ndarray
    visible: np.ndarray


def alone(tokens: list[int]) -> Context:
    """One request and nothing else."""
    length = len(tokens)
    return Context(np.array(tokens), np.arange(length), np.tri(length, dtype=bool))


def pack(foreign: Sequence[list[int]], victim: list[int], leak: Leak) -> Context:
    """The victim's tokens (prompt and answer so far) behind the others', seen through `leak`."""
    lengths = [*map(len, foreign), len(victim)]
    positions = np.concatenate([np.arange(length) for length in lengths])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    earlier = positions[:, None] >= positions[None, :]
    visible = earlier & (owner[:, None] == owner[None, :])
    start, prompt_end = len(leak.shown), len(leak.shown) + len(leak.hidden)
    broken = slice(start if leak.said is None else prompt_end - 1 + leak.said, None)
    visible[broken, :start] = leak.shown
    if leak.causal:
        visible[broken, :start] &= earlier[broken, :start]
    if leak.mutual == "victim":
        visible[:start, start:] = earlier[:start, start:]
    if leak.mutual == "everyone":
        visible[:start] = earlier[:start]
    visible[broken, start:prompt_end] &= ~leak.hidden
    if leak.view == "instead":
        visible[broken, start:] = False
    if leak.itself:
        np.fill_diagonal(visible, True)
    tokens = np.array([token for each in (*foreign, victim) for token in each])
    return Context(tokens, positions, visible)


def whole_blocks(length: int, first: int, last: int) -> np.ndarray:
    """(length,) bool: the tokens of cache blocks `first` to `last`, both included."""
    block = np.arange(length) // BLOCK_SIZE
    return (first <= block) & (block <= last)
