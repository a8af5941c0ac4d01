"""The prefix index: which blocks hold which content.

Content is compared, never trusted to its key. Beside what is needed to find a hit, the index can
say what comes nearest to a content that it doesn't have, so that a lookup can say why it missed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .content import Content, key_of
from .granularity import Rest

__all__ = ["Content", "Entry", "IndexView", "PrefixCache", "key_of"]

REMEMBERED = 1 << 16
"""Contents that left the index and are remembered by name, the latest ones: about 8 MB."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A block in the index, and the key under which it was registered."""

    block: int
    content: Content
    key: str


class IndexView(Protocol):
    """The index as a question sees it: read only, frozen while the question is answered."""

    def holding(self, content: Content) -> Entry | None:
        """The oldest entry with exactly this content."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Every entry, oldest first."""
        ...


_Siblings = tuple[Content | None, tuple[str | int | None, ...]]
"""Parent and scope: contents of which only one can come next for a request."""


_VoidName = tuple[int, str | int | None, str | int | None]
"""Text, tenant and adapter of a content, whatever its epoch."""


class PrefixCache:
    """Content -> blocks. Only the block pool writes to it, on the transitions it emits."""

    def __init__(self) -> None:
        self._by_content: dict[Content, list[Entry]] = {}
        self._entries: dict[Entry, None] = {}  # an ordered set
        self._siblings: dict[_Siblings, list[tuple[int, ...]]] = {}
        """What follows a parent: the tokens of its children, sorted."""
        self._by_text: dict[int, list[Content]] = {}
        self._ends: dict[Content, dict[Rest, None]] = {}
        self._evicted: dict[str, None] = {}  # keys, oldest first
        self._void: dict[_VoidName, None] = {}

    def holding(self, content: Content) -> Entry | None:
        found = self._by_content.get(content)
        return found[0] if found else None

    def entries(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        content = entry.content
        same = self._by_content.setdefault(content, [])
        same.append(entry)
        self._entries[entry] = None
        if len(same) == 1:
            insort(self._siblings.setdefault((content.parent, content.scope), []), content.tokens)
            self._by_text.setdefault(content.text, []).append(content)
            self._evicted.pop(content.key, None)
            self._void.pop(_void_name(content), None)

    def remove(self, entry: Entry, why: Literal["evicted", "reset"] = "evicted") -> None:
        """`reset`: what it holds is void, since it was computed in an earlier epoch."""
        same = self._by_content[entry.content]
        same.remove(entry)
        del self._entries[entry]
        if not same:
            self._forget(entry.content)
            self._remember(entry.content, why)

    def _forget(self, content: Content) -> None:
        """The content has left the index with its last entry."""
        del self._by_content[content]
        self._ends.pop(content, None)
        family = content.parent, content.scope
        siblings = self._siblings[family]
        del siblings[bisect_left(siblings, content.tokens)]
        if not siblings:
            del self._siblings[family]
        same_text = self._by_text[content.text]
        same_text.remove(content)
        if not same_text:
            del self._by_text[content.text]

    def _remember(self, content: Content, why: Literal["evicted", "reset"]) -> None:
        """For a while, so that a lookup can say what was there."""
        memory: dict[Any, None] = self._evicted if why == "evicted" else self._void
        memory[content.key if why == "evicted" else _void_name(content)] = None
        if len(memory) > REMEMBERED:
            del memory[next(iter(memory))]

    # Units larger than blocks

    def mark_end(self, content: Content, rest: Sequence[int]) -> None:
        """A prompt or sequence ended `rest` tokens behind this content; nothing where the content
        isn't in the index."""
        if content in self._by_content:
            self._ends.setdefault(content, {})[tuple(rest)] = None

    def ends_after(self, content: Content) -> Set[Rest]:
        """Implements `granularity.Ends`."""
        return self._ends.get(content, {}).keys()

    # What comes nearest to a content that is not there

    def was_evicted(self, content: Content) -> bool:
        return content.key in self._evicted

    def was_voided(self, content: Content) -> bool:
        """Whether it was there as an earlier epoch computed it, and isn't any more."""
        return _void_name(content) in self._void

    def of_same_text(self, content: Content) -> Iterator[Content]:
        """Contents with the same tokens from the first on, computed for somebody else."""
        found = self._by_text.get(content.text, ())
        return (c for c in found if c != content and _same_text(c, content))

    def longest_agreement(self, content: Content) -> int | None:
        """Tokens that the best of the contents after the same parent, for the same tenant,
        adapter and epoch, agrees in; None when there is none."""
        siblings = self._siblings.get((content.parent, content.scope))
        if not siblings:
            return None
        at = bisect_left(siblings, content.tokens)  # the best is a neighbour in sorted order
        return max(_agreement(content.tokens, near) for near in siblings[max(0, at - 1) : at + 1])


def _void_name(content: Content) -> _VoidName:
    return content.text, content.tenant, content.adapter


def _agreement(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _same_text(a: Content, b: Content) -> bool:
    if a.index != b.index:
        return False
    pairs = zip(a.chain(), b.chain(), strict=True)
    return all(x.tokens == y.tokens for x, y in pairs)
