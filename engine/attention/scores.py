"""How scores become weights: the arithmetic that both paths share, written out in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

QUERIES_AT_ONCE = 128
"""Bounds the scores to heads x 128 x keys; has no influence on the result."""


class Scoring(NamedTuple):
    """What a layer does with the products of its queries and keys, as it hands it over."""

    scaling: float
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap), before the mask (Gemma 2)."""
    sinks: Tensor | None = None
    """[heads] One more logit per head in the softmax's denominator, without a value (gpt-oss)."""

    @property
    def is_plain(self) -> bool:
        """Scaled products and nothing else, as torch's own kernel computes them."""
        return self.softcap is None and self.sinks is None


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scoring: Scoring) -> Tensor:
    """softmax(scores + bias) V for N independent rows of Q queries over K keys.

    query [N, heads, Q, dim], keys [N, kv_heads, K, dim], values [N, kv_heads, K, value_dim], bias
    [N, 1, Q, K] additive: 0 where visible, -inf elsewhere -> [N, heads, Q, value_dim]. A query
    that sees nothing gets NaN.
    """
    parts = zip(
        query.split(QUERIES_AT_ONCE, dim=2), bias.split(QUERIES_AT_ONCE, dim=2), strict=True
    )
    return torch.cat([_attend(q, keys, values, b, scoring) for q, b in parts], dim=2)


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scoring: Scoring) -> Tensor:
    rows, heads, queries, _ = query.shape
    kv_heads = keys.shape[1]
    by_kv_head = query.reshape(rows, kv_heads, -1, query.shape[-1])  # [N, kv_heads, group * Q, dim]
    scores = (by_kv_head @ keys.transpose(2, 3)).float() * scoring.scaling
    scores = scores.view(rows, heads, queries, -1)
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    weights = _softmax(scores + bias, scoring.sinks).to(values.dtype)
    out = weights.view(rows, kv_heads, -1, weights.shape[-1]) @ values
    return out.view(rows, heads, queries, -1)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """[N, heads, Q, K] weights; with sinks they sum to less than one."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


def attend_past_nan(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scoring: Scoring
) -> Tensor:
    """`attend`, where slots may hold NaN: whoever doesn't see such a slot doesn't meet it.

    By plain arithmetic it would: 0 * NaN is NaN. Whoever does see it is poisoned by it, which is
    what scrubbing with NaN is for.
    """
    if not (keys.sum() + values.sum()).isnan():  # one fast pass; nearly always all there is to do
        return attend(query, keys, values, bias, scoring)
    stale = keys.isnan().any(dim=3).any(dim=1) | values.isnan().any(dim=3).any(dim=1)  # [N, K]
    hidden = stale[:, None, :, None]
    poisoned = ((bias == 0) & stale[:, None, None]).any(dim=-1, keepdim=True)  # [N, 1, Q, 1]
    out = attend(query, keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0), bias, scoring)
    return out.masked_fill(poisoned, float("nan"))
