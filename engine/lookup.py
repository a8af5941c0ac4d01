"""What the prefix index has of a request's tokens, in every KV group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .block_pool import BlockPool
from .decisions import Hit, Share
from .journal import Journal
from .prefix_cache import Content
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
    lookup ended with one.
    """

    blocks: int
    found: tuple[Mapped, ...]
    mapped: tuple[tuple[Mapped, ...], ...]
    missed: Share | None

    @classmethod
    def nothing(cls, groups: int) -> Lookup:
        return cls(0, (), ((),) * groups, None)

    @property
    def asked(self) -> bool:
        return bool(self.found) or self.missed is not None


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
    ) -> None:
        self._block_size = block_size
        self._pools = pools
        self._groups = groups
        self._journal = journal
        self._content = content

    def of(self, request: Request) -> Lookup:
        """The last token is always computed: its logits are needed."""
        usable = (len(request.tokens) - 1) // self._block_size
        leading = _Group(self, request, 0)
        length = 0
        while length < usable and leading.has(length):
            length += 1
        missed = leading.questions[length] if length < usable else None
        others = [_Group(self, request, number) for number in range(1, len(self._groups))]
        while length and not all(
            g.has_all(self.first_needed(g.number, length), length) for g in others
        ):
            length -= 1
            missed = None
        return Lookup(
            length,
            leading.mapped(0, length),
            tuple(
                group.mapped(self.first_needed(group.number, length), length)
                for group in (leading, *others)
            ),
            missed,
        )

    def first_needed(self, group: int, blocks: int) -> int:
        """Index of the first block that the query behind `blocks` whole blocks sees."""
        window = self._groups[group].window
        if window is None:
            return 0
        return max(0, blocks * self._block_size - window + 1) // self._block_size

    def ask(self, request: Request, index: int, group: int) -> tuple[Share, Hit | None]:
        id = self._journal.next_id("share", request, index, group)
        question = Share(id, self._content(request, index), self._pools[group].cache)
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
