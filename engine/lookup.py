"""What the prefix index has of a request's tokens, in every KV group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .block_pool import BlockPool
from .content import Content
from .geometry import first_seen_block
from .granularity import Unit
from .journal import Journal
from .miss import why_missed
from .questions import Hit, Share
from .request import Request
from .runner import KVGroup


@dataclass(frozen=True, slots=True)
class Mapped:
    """A cached block that the request takes over, and the question that found it."""

    index: int
    hit: Hit
    question: Share


@dataclass(frozen=True, slots=True)
class Lookup:
    """`blocks` leading blocks needn't be computed.

    `found` are the hits of the first KV group in order, also those behind its window; `mapped`,
    per group, what the request takes over. `missed` is the question that found nothing, if the
    lookup ended with one. `keys` are all that were asked for; the first group has the leading
    `in_index` of them, and `whole` of those end with a whole unit.
    """

    blocks: int
    found: tuple[Mapped, ...]
    mapped: tuple[tuple[Mapped, ...], ...]
    missed: Share | None
    keys: tuple[str, ...] = ()
    in_index: int = 0
    whole: int = 0

    @classmethod
    def nothing(cls, groups: int) -> Lookup:
        return cls(0, (), ((),) * groups, None)

    @property
    def asked(self) -> bool:
        return bool(self.keys)


class PrefixLookup:
    """Asks for a request's blocks, one after the other, until one is missing.

    A group with a window needs only the blocks inside the window of the next query. Where it
    lacks one of them, a shorter prefix is tried (vLLM's hybrid cache coordinator does likewise).
    """

    def __init__(
        self,
        block_size: int,
        pools: Sequence[BlockPool],
        groups: Sequence[KVGroup],
        journal: Journal,
        content: Callable[[Request, int], Content],
        unit: Unit,
    ) -> None:
        self._block_size = block_size
        self._pools = pools
        self._groups = groups
        self._journal = journal
        self.content = content
        self._unit = unit

    def of(self, request: Request) -> Lookup:
        leading = _Group(self, request, 0)
        usable, in_index = self.usable(request), 0
        while in_index < usable and leading.has(in_index):
            in_index += 1
        others = [_Group(self, request, number) for number in range(1, len(self._groups))]
        whole = length = self._whole(request, in_index)
        while length and not all(self._has_needed(group, length) for group in others):
            length = self._whole(request, length - 1)
        missed = leading.questions[in_index] if in_index < usable else None
        return Lookup(
            blocks=length,
            found=leading.mapped(0, length),
            mapped=tuple(
                group.mapped(self.first_needed(group.number, length), length)
                for group in (leading, *others)
            ),
            missed=missed if length == in_index else None,
            keys=leading.keys(),
            in_index=in_index,
            whole=whole,
        )

    def why_missed(self, request: Request, lookup: Lookup) -> str | None:
        """What `PrefixLookedUp.missed_because` says."""
        if lookup.blocks < lookup.whole:
            return self._why_groups_missed(request, lookup)
        has_more = lookup.in_index < self.usable(request)
        missed = self.content(request, lookup.in_index) if has_more else None
        return self._why(request, lookup.in_index, lookup.whole, missed, 0)

    def _why_groups_missed(self, request: Request, lookup: Lookup) -> str | None:
        """The first block inside the window of another group that this lacks."""
        for number, pool in enumerate(self._pools):
            for index in range(self.first_needed(number, lookup.whole), lookup.whole):
                content = self.content(request, index)
                if pool.cache.holding(content) is None:
                    return self._why(request, index, index, content, number)
        return None

    def _why(
        self, request: Request, found: int, shared: int, missed: Content | None, group: int
    ) -> str | None:
        return why_missed(
            found=found,
            shared=shared,
            missed=missed,
            num_tokens=len(request.tokens),
            block_size=self._block_size,
            granularity=self._unit.granularity,
            index=self._pools[group].cache,
        )

    def usable(self, request: Request) -> int:
        """Whole blocks that needn't be computed, at best: the last token's logits are needed."""
        return (len(request.tokens) - 1) // self._block_size

    def _whole(self, request: Request, found: int) -> int:
        content = partial(self.content, request)
        ends = self._pools[0].cache
        return self._unit.whole(found, request.tokens, self._block_size, content, ends)

    def _has_needed(self, group: _Group, length: int) -> bool:
        return group.has_all(self.first_needed(group.number, length), length)

    def first_needed(self, group: int, blocks: int) -> int:
        """Index of the first block that the query behind `blocks` whole blocks sees."""
        size = self._block_size
        return first_seen_block(blocks * size, self._groups[group].window, size)

    def ask(self, request: Request, index: int, group: int) -> tuple[Share, Hit | None]:
        id = self._journal.next_id("share", request, index, group)
        question = Share(id, self.content(request, index), self._pools[group].cache)
        return question, self._journal.answer(question)


class _Group:
    """The answers of one KV group, asked for as they are needed."""

    def __init__(self, lookup: PrefixLookup, request: Request, number: int) -> None:
        self.number = number
        self.questions: dict[int, Share] = {}
        self._hits: dict[int, Hit | None] = {}
        self._lookup = lookup
        self._request = request

    def has(self, index: int) -> bool:
        if index not in self._hits:
            question, hit = self._lookup.ask(self._request, index, self.number)
            self.questions[index], self._hits[index] = question, hit
        return self._hits[index] is not None

    def has_all(self, start: int, stop: int) -> bool:
        return all(self.has(index) for index in range(start, stop))

    def mapped(self, start: int, stop: int) -> tuple[Mapped, ...]:
        found = ((i, self._hits.get(i)) for i in range(start, stop))
        return tuple(Mapped(i, hit, self.questions[i]) for i, hit in found if hit is not None)

    def keys(self) -> tuple[str, ...]:
        """Of all that was asked for, in order."""
        hits = ((question, self._hits[index]) for index, question in self.questions.items())
        return tuple(hit.key if hit else question.content.key for question, hit in hits)
