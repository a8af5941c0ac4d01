"""The prefix index: which blocks hold which content.

A block's content is its own tokens, the content before it, and for whom it was computed. The key
(a chained hash) is how a content is called in the trace; content is compared, never trusted to
its key (CVE-2025-25183: two prompts with one hash).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import msgpack


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a full block holds: `tokens` (its own, block_size of them), after `parent`."""

    parent: Content | None
    tokens: tuple[int, ...]
    tenant: str | int | None
    key: str = field(init=False)
    """Chained hash of all the above, hex."""
    index: int = field(init=False)
    """Logical index of the block: how many contents come before it."""

    def __post_init__(self) -> None:
        parent_key = self.parent.key if self.parent else None
        object.__setattr__(self, "key", key_of(parent_key, self.tokens, self.tenant))
        object.__setattr__(self, "index", self.parent.index + 1 if self.parent else 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content):
            return NotImplemented
        a: Content | None = self
        b: Content | None = other
        while a is not b:
            if a is None or b is None or a.tokens != b.tokens or a.tenant != b.tenant:
                return False
            a, b = a.parent, b.parent
        return True

    def __hash__(self) -> int:
        return hash(self.key)


def key_of(*parts: object) -> str:
    """A key: 16 bytes of blake2b over the unambiguous (msgpack) encoding of its parts, in hex."""
    return blake2b(msgpack.packb(parts) or b"", digest_size=16).hexdigest()


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


class PrefixCache:
    """Content -> blocks. Only the block pool writes to it, on the transitions it emits."""

    def __init__(self) -> None:
        self._by_content: dict[Content, list[Entry]] = {}
        self._entries: dict[Entry, None] = {}  # an ordered set

    def holding(self, content: Content) -> Entry | None:
        found = self._by_content.get(content)
        return found[0] if found else None

    def entries(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        self._by_content.setdefault(entry.content, []).append(entry)
        self._entries[entry] = None

    def remove(self, entry: Entry) -> None:
        same = self._by_content[entry.content]
        same.remove(entry)
        if not same:
            del self._by_content[entry.content]
        del self._entries[entry]
