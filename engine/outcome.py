"""What came of a step: the tokens that become part of requests, drafts verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .request import Request
from .rows import Row
from .runner import StepOutput
from .sampling import Sample


class Chosen(NamedTuple):
    """A token that a row gave, and to whom."""

    sample: Sample
    token: int
    logprob: float | None
    margin: float | None


class Verified(NamedTuple):
    """A row's drafts against what the model says: `accepted` of them, and what the request
    takes (those, and the token behind them unless it ended before)."""

    accepted: int
    taken: tuple[Chosen, ...]


def chosen_tokens(samples: tuple[Sample, ...], output: StepOutput) -> list[Chosen]:
    """In the order of the samples."""
    count = len(samples)
    logprobs = output.logprobs or (None,) * count
    margins = output.margins or (None,) * count
    return list(map(Chosen, samples, output.tokens, logprobs, margins))


def by_row(tokens: Iterable[Chosen]) -> dict[int, list[Chosen]]:
    """Row -> its tokens, in their order."""
    found: dict[int, list[Chosen]] = {}
    for chosen in tokens:
        found.setdefault(chosen.sample.row, []).append(chosen)
    return found


def verify(row: Row, chosen: list[Chosen], eos: frozenset[int]) -> Verified:
    """Drafts are accepted as long as each is what the model would have said itself."""
    accepted = 0
    for draft, said in zip(row.drafts, chosen, strict=False):
        if draft != said.token:
            break
        accepted += 1
    taken = tuple(_until_the_end(row.request, chosen[: accepted + 1], eos))
    return Verified(min(accepted, len(taken)), taken)


def _until_the_end(request: Request, chosen: list[Chosen], eos: frozenset[int]) -> Iterator[Chosen]:
    left = request.prompt.max_new_tokens - request.num_sampled
    for said in chosen[:left]:
        yield said
        if said.token in eos and not request.prompt.ignore_eos:
            return
