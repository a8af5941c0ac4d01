"""Where a shared prefix may end: after any full block, or only where a larger unit is whole.

A unit is compared as carefully as a block: it counts only if the request has all of it, token by
token, the part behind its last full block included. What is shared of it are whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol

from .content import Content

Granularity = Literal["block", "paragraph", "prompt", "sequence"]

Rest = tuple[int, ...]
"""The tokens of a unit behind its last published block, at most block_size of them."""


class Ends(Protocol):
    """Where the prompts or sequences of earlier requests ended."""

    def ends_after(self, content: Content) -> Set[Rest]:
        """For each unit whose last published block holds this content: what came behind it."""
        ...


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a run. `paragraph_tokens` are the tokens that end a paragraph; a model without
    any shares block by block."""

    granularity: Granularity = "block"
    paragraph_tokens: Set[int] = frozenset()

    def whole(
        self,
        found: int,
        tokens: Sequence[int],
        block_size: int,
        content: Callable[[int], Content],
        ends: Ends,
    ) -> int:
        """How many of the `found` leading blocks of a request may be shared.

        `tokens` are all of the request's, `content` gives what its n-th full block holds.
        """
        match self.granularity:
            case "paragraph" if self.paragraph_tokens:
                return self._whole_paragraphs(found, tokens, block_size)
            case "prompt" | "sequence":
                return _whole_requests(found, tokens, block_size, content, ends)
            case _:
                return found

    def promised(
        self, common: int, tokens: Sequence[int], block_size: int, prompt: Sequence[int]
    ) -> int:
        """How many of the `common` leading blocks, which another request with that prompt is
        computing now, a request with these tokens may share once they are computed."""
        match self.granularity:
            case "paragraph" if self.paragraph_tokens:
                return self._whole_paragraphs(common, tokens, block_size)
            case "prompt":
                is_whole = tuple(tokens[: len(prompt)]) == tuple(prompt)
                return min(common, len(prompt) // block_size) if is_whole else 0
            case "sequence":
                return 0  # that request goes on first
            case _:
                return common

    def _whole_paragraphs(self, found: int, tokens: Sequence[int], block_size: int) -> int:
        last = range(found * block_size - 1, -1, -1)
        end = next((i + 1 for i in last if tokens[i] in self.paragraph_tokens), 0)
        return end // block_size


def _whole_requests(
    found: int,
    tokens: Sequence[int],
    block_size: int,
    content: Callable[[int], Content],
    ends: Ends,
) -> int:
    """A request that is wholly equal may share what was found, although its last token, and so
    maybe the block that ends the unit, is computed in any case."""
    is_all = (found + 1) * block_size == len(tokens)
    for count in range(found + 1 if is_all else found, 0, -1):
        rests = ends.ends_after(content(count - 1))
        if rests and _continues(tokens[count * block_size :][:block_size], rests):
            return min(count, found)
    return 0


def _continues(tokens: Sequence[int], rests: Set[Rest]) -> bool:
    """Whether the tokens begin with one of the rests, of which each is at most as long."""
    return any(tuple(tokens[:length]) in rests for length in range(len(tokens) + 1))


def paragraph_ends(pieces: Iterable[tuple[int, str]]) -> frozenset[int]:
    """Of (token, its text): those whose text has a blank line; where there are none, full stops."""
    texts = [(token, text) for token, text in pieces if "\n" in text or "." in text]
    blank = frozenset(token for token, text in texts if _has_blank_line(text))
    return blank or frozenset(token for token, text in texts if text.strip() == ".")


def _has_blank_line(text: str) -> bool:
    lines = text.split("\n")
    return len(lines) > 2 and any(not line.strip() for line in lines[1:-1])
