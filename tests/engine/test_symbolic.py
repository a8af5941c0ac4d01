"""The simulator says what each row's slots say, whatever the device is given."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.canary.wordpiece import WordPiece
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.inputs import BlockCopy, BlockMove, BlockScrub, GroupInputs, StepInputs
from kvrewind.engine.request import Prompt, Request
from kvrewind.engine.sampling import Sample
from kvrewind.engine.speech import Speech
from kvrewind.engine.symbolic import SymbolicRunner
from plain_symbolic import PlainSymbolic

TOKENIZER = WordPiece.load()
NUM_BLOCKS = 14


@dataclass
class Given:
    """A row of a step: a request's tokens from `start` to `end`, or a pad's."""

    request: Request | None
    start: int
    end: int
    tokens: list[int]
    drafts: int = 0
    samples: bool = False

    @property
    def positions(self) -> list[int]:
        return list(range(self.start, self.end)) or [0] * len(self.tokens)


class Scene:
    """Requests that run in a pool, each step mostly as it should be."""

    def __init__(self, rng: Random, size: int, windows: tuple[int | None, ...], how: str) -> None:
        config = EngineConfig(block_size=size, num_blocks=NUM_BLOCKS)
        self.rng, self.size, self.windows, self.how = rng, size, windows, how
        self.runner = SymbolicRunner(config, TOKENIZER, windows=windows)
        self.plain = PlainSymbolic(size, Speech(TOKENIZER, 0), TOKENIZER.unk_id)
        base = [rng.randint(15, 20) for _ in range(3 * size)]
        self.requests = [self._request(f"r{i}", base) for i in range(rng.randint(2, 4))]
        self.computed = {request.name: 0 for request in self.requests}
        self.is_careless = rng.random() < 0.6
        """Whether what the device is given is sometimes wrong."""

    def _request(self, name: str, base: list[int]) -> Request:
        kept = self.rng.randint(0, len(base))
        own = [self.rng.randint(15, 20) for _ in range(self.rng.randint(1, self.size))]
        colour = ((self.rng.randint(0, 4), "image"),) if self.rng.random() < 0.2 else ()
        prompt = Prompt(
            request=name,
            prompt_tokens=(*base[:kept], *own),
            max_new_tokens=8,
            extra_keys=colour,
            adapter="lora" if self.rng.random() < 0.1 else None,
        )
        request = Request.of(prompt, groups=len(self.windows))
        blocks = list(range(NUM_BLOCKS))
        for table in request.tables:
            self.rng.shuffle(blocks)  # of each request anew: some are in two tables
            for index in range(-(-(len(prompt.prompt_tokens) + 14) // self.size)):
                table.put(index, blocks[index])
        self.runner.begin(request)
        self.plain.begin(request)
        return request

    def step(self, number: int) -> None:
        inputs, rows = self._inputs(number)
        expected = self.plain.execute(inputs)
        assert self.runner.execute(inputs).tokens == expected
        for row in rows:
            assert row.request is not None
            self.computed[row.request.name] = row.end - row.drafts
            if row.samples:
                names = [sample.request for sample in inputs.samples]
                row.request.tokens.append(expected[names.index(row.request.name)])

    # What the device is given.

    def _inputs(self, number: int) -> tuple[StepInputs, list[Given]]:
        rows: list[Given] = []
        for request in self.rng.sample(self.requests, self.rng.randint(1, len(self.requests))):
            rows.append(self._row(request))
            if self.rng.random() < 0.2:
                rows.append(Given(None, 0, 0, [0] * self.rng.randint(1, 2)))
        ends = np.cumsum([len(row.tokens) for row in rows])
        samples = [
            (
                Sample(row.request.name, index, r, row.request.sampling),
                ends[r] - 1 - row.end + index,
            )
            for r, row in enumerate(rows)
            if row.request is not None and row.samples
            for index in range(row.end - row.drafts, row.end + 1)
        ]
        arrays = {
            "query_lens": [len(row.tokens) for row in rows],
            "seq_lens": [row.end for row in rows],
            "tokens": [token for row in rows for token in row.tokens],
            "positions": [position for row in rows for position in row.positions],
            "drafts": [row.drafts for row in rows],
            "logit_tokens": [at for _, at in samples],
        }
        arrays = {name: np.array(values, dtype=np.int64) for name, values in arrays.items()}
        inputs = StepInputs(
            step=number,
            requests=tuple(row.request.name if row.request else None for row in rows),
            phases=tuple("decode" if len(row.tokens) == 1 else "prefill" for row in rows),
            groups=tuple(self._group(g, rows, arrays) for g in range(len(self.windows))),
            samples=tuple(sample for sample, _ in samples),
            mask_keys=self.how if self.how != "lengths" else "pool",  # type: ignore[arg-type]
            moves=tuple(self._moves()),
            **arrays,
        )
        self._spoil(inputs.tokens, 15, 20)
        self._spoil(inputs.positions, 0, 12)
        self._spoil(inputs.logit_tokens, 0, len(inputs.tokens) - 1)
        return inputs, [row for row in rows if row.request is not None]

    def _row(self, request: Request) -> Given:
        start = self.computed[request.name]
        if self.rng.random() < 0.1:
            start = 0  # as after a preemption
        known = request.tokens[start : start + self.rng.randint(1, len(request.tokens) - start)]
        ends = start + len(known) == len(request.tokens)
        drafts = self.rng.choice((0, 0, 1, 3)) if ends else 0
        guessed = [self.rng.randint(15, 20) for _ in range(drafts)]
        return Given(request, start, start + len(known) + drafts, [*known, *guessed], drafts, ends)

    def _spoil(self, values: np.ndarray, low: int, high: int) -> None:
        if len(values) and self.is_careless and self.rng.random() < 0.2:
            values[self.rng.randrange(len(values))] = self.rng.randint(low, high)

    def _moves(self) -> list[BlockMove]:
        moves: list[BlockMove] = []
        while self.rng.random() < 0.15:
            group, rng = self.rng.randrange(len(self.windows)), self.rng
            if rng.random() < 0.5:
                how = rng.choice(("zero", "nan"))
                moves.append(BlockScrub(rng.randrange(NUM_BLOCKS), how, group))
            else:
                source, destination = rng.sample(range(NUM_BLOCKS), 2)
                moves.append(BlockCopy(source, destination, rng.randint(1, self.size), group))
        return moves

    def _group(self, number: int, rows: list[Given], arrays: dict[str, np.ndarray]) -> GroupInputs:
        size, seq_lens = self.size, arrays["seq_lens"]
        given = np.full((len(rows), max(1, int(-(-seq_lens.max() // size)))), -1)
        for row, table in zip(rows, given, strict=True):
            if row.request is not None:
                count = -(-row.end // size)
                table[:count] = row.request.tables[number].blocks[:count]
        row_of = np.repeat(np.arange(len(rows)), arrays["query_lens"])
        starts = np.cumsum(arrays["query_lens"]) - arrays["query_lens"]
        own = (seq_lens - arrays["query_lens"] - starts)[row_of] + np.arange(len(row_of))
        is_pad = np.array([row.request is None for row in rows])[row_of]
        own[is_pad] = 0
        blocks = given[row_of, own // size]
        slots = np.where(is_pad | (blocks < 0), -1, blocks * size + own % size)
        self._spoil(slots, -1, NUM_BLOCKS * size - 1)
        mask = self._mask(number, given, seq_lens, row_of, own, is_pad)
        self._spoil(given.reshape(-1), -1, NUM_BLOCKS - 1)
        return GroupInputs(
            block_tables=given, slot_mapping=slots, window=self.windows[number], mask=mask
        )

    def _mask(self, number: int, given, seq_lens, row_of, own, is_pad) -> np.ndarray | None:
        if self.how == "lengths":
            return None
        widths = {
            "pool": NUM_BLOCKS * self.size,
            "per_row": int(seq_lens.max()),
            "concatenated": int(seq_lens.sum()),
        }
        mask = np.zeros((len(row_of), widths[self.how]), dtype=bool)
        offsets = np.cumsum(seq_lens) - seq_lens
        window = self.windows[number] or 10**6
        for token in np.flatnonzero(~is_pad).tolist():
            row, last = int(row_of[token]), int(own[token])
            for key in range(max(0, last - window + 1), last + 1):
                column = key
                if self.how == "pool":
                    column = int(given[row, key // self.size]) * self.size + key % self.size
                elif self.how == "concatenated":
                    column += int(offsets[row])
                mask[token, column] = True
        if self.is_careless and self.rng.random() < 0.3:
            token, column = self.rng.randrange(mask.shape[0]), self.rng.randrange(mask.shape[1])
            mask[token, column] ^= True
        return mask


@pytest.mark.parametrize("how", ["lengths", "pool", "per_row", "concatenated"])
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([2, 4]),
    windows=st.sampled_from([(None,), (None, 3), (5,)]),
)
def test_it_says_what_the_slots_say_one_by_one(
    how: str, seed: int, size: int, windows: tuple[int | None, ...]
) -> None:
    scene = Scene(Random(seed), size, windows, how)
    for number in range(1, 9):
        scene.step(number)
