"""What a full block holds, and the key under which a trace speaks of it.

A block's content is its own tokens, the content before it, and for whom it was computed. The key
(a chained hash) only names it: content is compared, never trusted to its key (CVE-2025-25183: two
prompts with one hash).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import msgpack

ExtraKeys = tuple[tuple[int, str | int], ...]
"""(first position, key) of what colours the tokens from there on without being one."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Content:
    """What a full block holds: `tokens` (its own, block_size of them), after `parent`.

    `extra_keys` are those whose first position lies in this block; earlier ones colour it through
    its parent. `epoch` names the weights it was computed with, where they ever changed.
    """

    parent: Content | None
    tokens: tuple[int, ...]
    tenant: str | int | None
    adapter: str | int | None = None
    extra_keys: ExtraKeys = ()
    epoch: str | int | None = None
    key: str = field(init=False)
    """Chained hash of all the above, hex."""
    index: int = field(init=False)
    """Logical index of the block: how many contents come before it."""
    text: int = field(init=False)
    """Chained hash of the tokens alone: finds the same text computed for somebody else."""

    def __post_init__(self) -> None:
        parent = self.parent
        parts = (parent.key if parent else None, self.tokens, self.tenant)
        further = (self.adapter, self.extra_keys, self.epoch)
        is_plain = further == (None, (), None)
        object.__setattr__(self, "key", key_of(*parts) if is_plain else key_of(*parts, *further))
        object.__setattr__(self, "index", parent.index + 1 if parent else 0)
        object.__setattr__(self, "text", hash((parent.text if parent else None, self.tokens)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content):
            return NotImplemented
        a: Content | None = self
        b: Content | None = other
        while a is not b:
            if a is None or b is None or a.tokens != b.tokens or a.scope != b.scope:
                return False
            if a.extra_keys != b.extra_keys:
                return False
            a, b = a.parent, b.parent
        return True

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def scope(self) -> tuple[str | int | None, ...]:
        """For whom it was computed: tenant, adapter, epoch."""
        return self.tenant, self.adapter, self.epoch

    def chain(self) -> tuple[Content, ...]:
        """The contents from the first block to this one."""
        found: list[Content] = []
        at: Content | None = self
        while at is not None:
            found.append(at)
            at = at.parent
        return tuple(reversed(found))


def key_of(*parts: object) -> str:
    """A key: 16 bytes of blake2b over the unambiguous (msgpack) encoding of its parts, in hex."""
    return blake2b(msgpack.packb(parts) or b"", digest_size=16).hexdigest()


def extra_keys_in(keys: ExtraKeys, positions: range) -> ExtraKeys:
    """The keys that begin at these positions, in an order that doesn't depend on how they came."""
    if not keys:
        return ()
    own = (key for key in keys if key[0] in positions)
    return tuple(sorted(own, key=lambda key: (key[0], repr(key[1]))))
