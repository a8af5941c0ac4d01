"""From logits to tokens: greedy, or drawn by temperature, top-k and top-p.

A token is drawn by inverting the cumulated probabilities at a random number that is keyed by the
run's seed, the request and the token's index, so that a request says the same in any batch, in any
order, and after a preemption. They are cumulated in the order of the vocabulary and not by rank:
where another batch changes the last bits of a logit, two tokens that are nearly equal swap ranks,
and with them all that lies between; in the vocabulary's order a small change of the logits moves
each border by as little.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .runner import StepOutput
from .sampling import Sample, uniform


def choose(logits: Tensor, samples: Sequence[Sample], seed: int) -> StepOutput:
    """logits [S, vocab] -> a token for each of the S samples, its log probability, and the lead
    of the best logit over the second best.

    Log probabilities are those of the model, before temperature, top-k and top-p. A row that saw
    nothing (a planted mask fault can do that) has NaN logits: they count as equal, so that the run
    goes on and the trace shows what happened.
    """
    sums = logits.logsumexp(dim=-1)
    if not sums.isfinite().all():
        logits = torch.nan_to_num(logits)
        sums = logits.logsumexp(dim=-1)
    top, best = logits.topk(2, dim=-1)
    tokens = best[:, 0]
    for row, sample in enumerate(samples):
        if sample.sampling.temperature > 0:
            tokens[row] = _draw(logits[row], sample, seed)
        elif top[row, 0] == top[row, 1]:  # of equals topk may take any, argmax takes the first
            tokens[row] = logits[row].argmax()
    logprobs = logits.gather(-1, tokens[:, None])[:, 0] - sums
    return StepOutput(
        tokens=tuple(tokens.tolist()),
        logprobs=tuple(logprobs.tolist()),
        margins=tuple((top[:, 0] - top[:, 1]).tolist()),
    )


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
