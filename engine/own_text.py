"""What requests' own texts come to, as contents: what each of them should see."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from .inputs import IntArray
from .request import Prompt, Request
from .slot_memory import Contents, mixed

NO_LANE = 0
"""The lane of pads, whose text is empty."""
_LANES, _BLOCKS = 32, 64
"""To begin with."""


class OwnTexts:
    """A lane for each request that is at work, so that a step asks for all of its rows at once.

    Lanes are recycled; a text whose lane was taken is worked out anew when it is wanted.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._lanes: dict[str, int] = {}
        self._unused = list(range(_LANES, NO_LANE, -1))
        self.lengths = np.zeros(_LANES + 1, dtype=np.int64)
        """[lanes] how many of the request's tokens are worked out."""
        self._contents = np.zeros(_LANES + 1, dtype=np.uint64)
        """[lanes] content of all these tokens."""
        self.ends = np.zeros((_LANES + 1, _BLOCKS), dtype=np.uint64)
        """[lanes, blocks] content at the end of each full block of them."""

    def lanes(self, requests: Sequence[Request | None]) -> IntArray:
        """[len(requests)]"""
        known = self._lanes
        try:
            found = [NO_LANE if r is None else known[r.prompt.request] for r in requests]
        except KeyError:
            self._take_lanes([r for r in requests if r is not None])
            return self.lanes(requests)
        return np.array(found, dtype=np.int64)

    def before(
        self, requests: Sequence[Request | None], lanes: IntArray, starts: IntArray
    ) -> Contents:
        """[R] the content of each request's first `starts` tokens."""
        for row in np.flatnonzero(self.lengths[lanes] != starts).tolist():
            request = requests[row]
            if request is not None:
                self.work_out(request, int(lanes[row]), int(starts[row]))
        return self._contents[lanes]

    def extend(self, lanes: IntArray, lengths: IntArray, contents: Contents) -> None:
        """[R] these texts go on by one token each, to these lengths and contents."""
        self.lengths[lanes] = lengths
        self._contents[lanes] = contents
        full = np.flatnonzero(lengths % self._block_size == 0)
        if len(full):
            blocks = lengths[full] // self._block_size - 1
            self.make_room(int(blocks.max()) + 1)
            self.ends[lanes[full], blocks] = contents[full]

    def of(self, prompt: Prompt, tokens: Sequence[int]) -> Contents:
        """[len(tokens)] contents of a whole text, all that colours it included."""
        return _root(prompt) + np.cumsum(_added(prompt, tokens, 0))

    def make_room(self, blocks: int) -> None:
        """Let `ends` be at least that wide."""
        if blocks > self.ends.shape[1]:
            wider = np.zeros((len(self.ends), 2 * blocks), dtype=np.uint64)
            wider[:, : self.ends.shape[1]] = self.ends
            self.ends = wider

    def work_out(self, request: Request, lane: int, length: int) -> None:
        """From what is known before `length`, or as far as the request has tokens."""
        size = self._block_size
        start = int(self.lengths[lane])
        at = self._contents[lane]
        if start > length or start == 0:
            start = max(min(start, length), 0) // size * size
            at = self.ends[lane, start // size - 1] if start else _root(request.prompt)
        contents = at + np.cumsum(_added(request.prompt, request.tokens[start:length], start))
        end = start + len(contents)
        self.make_room(end // size)
        self.ends[lane, start // size : end // size] = contents[size - 1 - start % size :: size]
        self.lengths[lane] = end
        self._contents[lane] = contents[-1] if len(contents) else at

    def _take_lanes(self, requests: Sequence[Request]) -> None:
        needed = {request.name: request for request in requests}
        missing = [name for name in needed if name not in self._lanes]
        if len(missing) > len(self._unused):
            for name in [name for name in self._lanes if name not in needed]:
                self._unused.append(self._lanes.pop(name))
        while len(missing) > len(self._unused):
            self._double()
        for name in missing:
            lane = self._lanes[name] = self._unused.pop()
            self.lengths[lane] = 0
            self._contents[lane] = _root(needed[name].prompt)

    def _double(self) -> None:
        lanes = len(self.ends)
        self._unused.extend(range(2 * lanes - 1, lanes - 1, -1))
        self.lengths = np.concatenate((self.lengths, np.zeros_like(self.lengths)))
        self._contents = np.concatenate((self._contents, np.zeros_like(self._contents)))
        self.ends = np.concatenate((self.ends, np.zeros_like(self.ends)))


def colour(adds: Contents, prompt: Prompt, positions: IntArray) -> None:
    """[T] tokens of a request: its extra keys change what the token where each begins adds."""
    for position, key in prompt.extra_keys:
        adds[positions == position] += _salt("extra key", position, key)


def _added(prompt: Prompt, tokens: Sequence[int], start: int) -> Contents:
    """[len(tokens)] what each of a request's tokens from `start` on adds to the content before
    it."""
    positions = np.arange(start, start + len(tokens))
    adds = mixed(np.asarray(tokens, dtype=np.int64), positions)
    colour(adds, prompt, positions)
    return adds


def _root(prompt: Prompt) -> np.uint64:
    """The content before the first token."""
    return np.uint64(0) if prompt.adapter is None else _salt("adapter", 0, prompt.adapter)


def _salt(what: str, position: int, key: str | int) -> np.uint64:
    digest = blake2b(repr((what, position, key)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
