"""How a token is chosen from a row's logits: torch-free, so that the simulator can follow it."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple


class Sampling(NamedTuple):
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave nothing out."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


class Sample(NamedTuple):
    """One token that a step is to choose.

    Random numbers are keyed by the run's seed, `request` and `index`, so that a request says the
    same in any batch.
    """

    request: str
    """Who takes the token; a fork takes its first one from its parent's row."""
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # nobody searches a sample
    """The index that the token takes in its request."""
    row: int
    """Row of the step whose logits it is chosen from."""
    sampling: Sampling


def uniform(seed: int, request: str, index: int) -> float:
    """The random number in [0, 1) of the token that takes `index` in `request`.

    It depends on nothing else: not on the batch, nor on what was drawn before it. 53 bits of a
    hash, as counter-based generators do (Salmon et al. 2011, "Parallel random numbers: as easy as
    1, 2, 3").
    """
    digest = blake2b(f"{seed}:{index}:{request}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53
