"""From logits to tokens: greedy, or drawn by temperature, top-k and top-p.

A token is drawn by inverting the cumulated probabilities at a random number that is keyed by the
run's seed, the request and the token's index, so that a request says the same in any batch, in any
order, and after a preemption. They are cumulated in the order of the vocabulary and not by rank:
where another batch changes the last bits of a logit, two tokens that are nearly equal swap ranks,
and with them all that lies between; in the vocabulary's order a small change of the logits moves
each border by as little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .runner import StepOutput
from .sampling import Sample, uniform

MOST_IN_CHUNK = 1024
"""Logits that are searched together: a power of two, so that it divides most vocabularies."""

LEAST_IN_CHUNK = 64
"""Below it there are too many chunks to gain anything."""


def choose(logits: Tensor, samples: Sequence[Sample], seed: int) -> StepOutput:
    """logits [S, vocab] -> a token for each of the S samples, its log probability, and the lead
    of the best logit over the second best.

    Log probabilities are those of the model, before temperature, top-k and top-p. A row that saw
    nothing (a planted mask fault can do that) has NaN logits: they count as equal, so that the run
    goes on and the trace shows what happened.
    """
    logprobs = logits.log_softmax(dim=-1)
    top, tokens = best_two(logits)
    if not logprobs.sum().isfinite():
        logits = torch.nan_to_num(logits)
        logprobs = logits.log_softmax(dim=-1)
        top, tokens = best_two(logits)
    for row, sample in enumerate(samples):
        if sample.sampling.temperature > 0:
            tokens[row] = _draw(logits[row], sample, seed)
    return StepOutput(
        tokens=tuple(tokens.tolist()),
        logprobs=tuple(logprobs.gather(-1, tokens[:, None])[:, 0].tolist()),
        margins=tuple((top[:, 0] - top[:, -1]).tolist()),
    )


def best_two(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [S, vocab] -> the two highest of each row [S, 2], and the first token that has the
    highest [S].

    Both lie in the two chunks with the highest maxima, which are found at the speed of memory;
    `topk` over the whole vocabulary takes twenty times as long.
    """
    size = math.gcd(logits.shape[-1], MOST_IN_CHUNK)
    if size < LEAST_IN_CHUNK or size == logits.shape[-1]:
        top, ranked = logits.topk(min(2, logits.shape[-1]), dim=-1)
        tokens = ranked[:, 0]
    else:
        chunks = logits.unflatten(-1, (-1, size))
        index = chunks.amax(dim=-1).topk(2, dim=-1).indices  # [S, 2]
        few = chunks.gather(1, index[:, :, None].expand(-1, -1, size))  # [S, 2, size]
        top, ranked = few.flatten(1).topk(2, dim=-1)
        tokens = index.gather(-1, ranked[:, :1] // size)[:, 0] * size + ranked[:, 0] % size
    for row in (top[:, 0] == top[:, -1]).nonzero()[:, 0].tolist():
        tokens[row] = logits[row].argmax()  # of equals topk takes any
    return top, tokens


def _draw(logits: Tensor, sample: Sample, seed: int) -> Tensor:
    """logits [vocab] -> one token [], in float64 so that borders are as fine as the random number.

    The first token whose cumulated probability lies above the random number's share of the whole,
    which a token of probability 0 never is.
    """
    borders = probabilities(logits, sample).cumsum(dim=-1)
    share = uniform(seed, sample.request, sample.index) * borders[-1]
    return torch.searchsorted(borders, share, right=True)


def probabilities(logits: Tensor, sample: Sample) -> Tensor:
    """logits [vocab], finite -> float64 [vocab]: what is left after top-k and top-p, unnormalised.

    Top-k first, then top-p of what is left: the fewest best tokens that have at least that much
    of it, as in vLLM. Of equal logits the lower token counts as the better.
    """
    temperature, top_k, top_p = sample.sampling
    scaled = logits.double()
    chances = ((scaled - scaled.max()) / temperature).exp()
    if not 0 < top_k < len(chances) and top_p >= 1:
        return chances
    order = logits.sort(descending=True, stable=True).indices
    ranked = chances[order]
    if top_k > 0:
        ranked[top_k:] = 0
    if top_p < 1:
        enough = ranked.cumsum(dim=-1) >= top_p * ranked.sum()
        ranked[1:][enough[:-1]] = 0  # what comes after; the best one always stays
    return torch.zeros_like(chances).scatter(-1, order, ranked)
