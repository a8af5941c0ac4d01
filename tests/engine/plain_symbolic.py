"""The simulator once more, slot by slot, on dictionaries: slow, and plain to read.

A content is spelled out: all tokens of a text up to one of them, each with its position and the
extra keys that begin there, behind the adapter that it is computed with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from kvrewind.engine.inputs import BlockCopy, BlockScrub, StepInputs
from kvrewind.engine.request import Request
from kvrewind.engine.sampling import Sample
from kvrewind.engine.speech import Speech

Content = tuple[object, ...]
POISON: Content = ("nan",)


@dataclass
class PlainSymbolic:
    """What `SymbolicRunner.execute` should choose."""

    block_size: int
    speech: Speech
    unknown: int
    slots: dict[tuple[int, int], tuple[Content, str | None]] = field(default_factory=dict)
    """(KV group, slot) -> what it holds, and who wrote it."""
    requests: dict[str, Request] = field(default_factory=dict)

    def begin(self, request: Request) -> None:
        self.requests[request.name] = request
        self.speech.begin(request.prompt)

    def execute(self, inputs: StepInputs) -> tuple[int, ...]:
        for move in inputs.moves:
            self._move(move)
        for group, its in enumerate(inputs.groups):
            for token, slot in enumerate(its.slot_mapping.tolist()):
                if slot >= 0:
                    row = int(inputs.row_of_token[token])
                    self.slots[group, slot] = self._given(inputs, token), inputs.requests[row]
        wanted = zip(inputs.samples, inputs.logit_tokens.tolist(), strict=True)
        return tuple(self._say(inputs, sample, token) for sample, token in wanted)

    def _move(self, move: BlockScrub | BlockCopy) -> None:
        size = self.block_size
        if isinstance(move, BlockScrub):
            for slot in range(move.block * size, (move.block + 1) * size):
                self.slots.pop((move.group, slot), None)
                if move.how == "nan":
                    self.slots[move.group, slot] = POISON, None
            return
        for offset in range(move.slots):
            held = self.slots.get((move.group, move.source * size + offset))
            self.slots.pop((move.group, move.destination * size + offset), None)
            if held is not None:
                self.slots[move.group, move.destination * size + offset] = held

    def _given(self, inputs: StepInputs, token: int) -> Content:
        """What the device is given of the row up to this token, after its request's own."""
        row = int(inputs.row_of_token[token])
        first = int(inputs.row_starts[row])
        name = inputs.requests[row]
        start = max(int(inputs.positions[first]), 0)
        before = self.requests[name].tokens[:start] if name is not None else []
        given = slice(first, token + 1)
        tokens = [*before, *inputs.tokens[given].tolist()]
        return self._content(name, tokens, [*range(len(before)), *inputs.positions[given].tolist()])

    def _content(self, name: str | None, tokens: list[int], positions: list[int]) -> Content:
        prompt = self.requests[name].prompt if name is not None else None
        keys = prompt.extra_keys if prompt else ()
        return (
            prompt.adapter if prompt else None,
            *(
                (t, i, *(k for at, k in keys if at == i))
                for t, i in zip(tokens, positions, strict=True)
            ),
        )

    def _say(self, inputs: StepInputs, sample: Sample, token: int) -> int:
        row = int(inputs.row_of_token[token])
        name = inputs.requests[row]
        if name is None:
            return self.unknown
        end = int(inputs.row_starts[row + 1])
        length = int(inputs.seq_lens[row]) - (end - 1 - token)
        drafts = inputs.tokens[end - int(inputs.drafts[row]) : end].tolist()
        tokens = [*self.requests[name].tokens, *drafts][:length]
        own = [self._content(name, tokens[:n], list(range(n))) for n in range(1, len(tokens) + 1)]
        source = self._source(inputs, row, token, length, name, own)
        if source is None:
            return self.unknown
        return self.speech.draw(self.speech.next(name, length, source), sample)

    def _source(
        self,
        inputs: StepInputs,
        row: int,
        token: int,
        length: int,
        name: str,
        own: list[Content],
    ) -> str | None:
        if length < 1:
            return None
        source = name if len(own) == length else None
        for number, group in enumerate(inputs.groups):
            window = length if group.window is None else group.window
            first = max(0, length - window)
            seen = [
                None if slot is None else self.slots.get((number, slot))
                for slot in self._seen(inputs, number, row, token, range(first, length))
            ]
            if any(held is not None and held[0] == POISON for held in seen):
                return None
            strange = [w for c, w in filter(None, seen) if w not in (None, name) and c not in own]
            if strange:
                return strange[-1]
            if None in seen or {c for c, _ in filter(None, seen)} != set(own[first:]):
                source = None
        return source

    def _seen(
        self, inputs: StepInputs, number: int, row: int, token: int, keys: range
    ) -> Iterator[int | None]:
        group = inputs.groups[number]
        if group.mask is None:
            yield from (self._slot(group.block_tables[row], key) for key in keys)
            return
        columns = np.flatnonzero(group.mask[token]).tolist()
        if inputs.mask_keys == "pool":
            yield from columns
            return
        for column in columns:
            key, owner = column, row
            if inputs.mask_keys == "concatenated":
                owner = 0
                while key >= inputs.seq_lens[owner]:
                    key -= int(inputs.seq_lens[owner])
                    owner += 1
            yield self._slot(group.block_tables[owner], key)

    def _slot(self, table: np.ndarray, key: int) -> int | None:
        index = key // self.block_size
        if index >= len(table) or table[index] < 0:
            return None
        return int(table[index]) * self.block_size + key % self.block_size
