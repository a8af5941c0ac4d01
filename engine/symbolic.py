"""The simulator: a runner without weights.

From the arrays that the device is given it works out which slots each row sees and whose content
they hold. A request that sees exactly its own context says what it would say anywhere; one that
sees somebody else's says what the other would. Same arrays, same events, no torch.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from .canary.wordpiece import WordPiece
from .config import EngineConfig
from .granularity import paragraph_ends
from .inputs import BoolArray, IntArray, StepInputs
from .own_text import NO_LANE, OwnTexts, colour
from .request import Request
from .runner import ModelCard, StepOutput
from .slot_memory import EMPTY, NOBODY, POISON, Contents, SymbolicMemory, mixed
from .speech import Speech, Voices

_NO_REQUEST = NOBODY, None
"""Number and request of a pad."""


@dataclass(slots=True)
class _Step:
    """A step's R rows and T tokens, as far as they matter to more than one question."""

    inputs: StepInputs
    requests: tuple[Request | None, ...]
    numbers: IntArray  # [R] of the row's request; NOBODY for a pad
    lanes: IntArray  # [R]
    row_of: IntArray  # [T]
    ends: IntArray  # [R] end of each row in the T tokens
    given: Contents  # [T] what is written
    before: Contents  # [T] the content before it
    own: Contents  # [T] what a request's own token should be at this place of its row
    indices: IntArray  # [T] the index in its request of such a token


class SymbolicRunner:
    """Implements `Runner` over pools of num_blocks x block_size slots, one a KV group.

    `windows`: of each KV group; None = it sees everything. `name` is what the trace calls the
    model. `voices` and `card` are the simulator's own where not given.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: WordPiece,
        *,
        name: str = "symbolic",
        windows: Sequence[int | None] = (None,),
        voices: Voices | None = None,
        card: ModelCard | None = None,
    ) -> None:
        self.memory = SymbolicMemory(config.num_blocks, config.block_size, len(windows))
        self._block_size = config.block_size
        self._unknown = tokenizer.unk_id
        self._speech = voices or Speech(tokenizer, config.seed)
        self._texts = OwnTexts(config.block_size)
        self._requests: dict[str, tuple[int, Request]] = {}
        self._names: list[str] = []
        """Of the requests, in the order of their numbers."""
        self._are_coloured = False
        """Whether any request has extra keys."""
        self._card = card or _card(config, tokenizer, name, windows)

    @property
    def card(self) -> ModelCard:
        return self._card

    def begin(self, request: Request) -> None:
        self._requests[request.name] = len(self._names), request
        self._names.append(request.name)
        self._are_coloured = self._are_coloured or bool(request.prompt.extra_keys)
        self._speech.begin(request.prompt)

    def execute(self, inputs: StepInputs) -> StepOutput:
        self.memory.move(inputs.moves)
        step = self._worked_out(inputs)
        writers = step.numbers[step.row_of]
        for memory, group in zip(self.memory.groups, inputs.groups, strict=True):
            memory.write(group.slot_mapping, step.given, step.before, writers)
        return StepOutput(tokens=self._choose(step))

    # What the step writes, and what its rows should see.

    def _worked_out(self, inputs: StepInputs) -> _Step:
        found = [_NO_REQUEST if n is None else self._requests[n] for n in inputs.requests]
        requests = tuple([request for _, request in found])
        lanes = self._texts.lanes(requests)
        ends = inputs.query_lens.cumsum()
        firsts = ends - inputs.query_lens
        starts = np.maximum(inputs.positions[firsts], 0)
        row_of = np.arange(len(requests)).repeat(inputs.query_lens)
        indices = (starts - firsts)[row_of] + np.arange(len(row_of))
        before = self._texts.before(requests, lanes, starts)

        def contents(tokens: IntArray, positions: IntArray) -> tuple[Contents, Contents]:
            adds = mixed(tokens, positions)
            for row, request in enumerate(requests) if self._are_coloured else ():
                if request is not None:
                    part = slice(firsts[row], ends[row])
                    colour(adds[part], request.prompt, positions[part])
            if len(adds) == len(before):  # a token a row
                return before + adds, before
            sums = adds.cumsum()
            sums += (before - (sums - adds)[firsts])[row_of]
            return sums, sums - adds

        given, before_given = contents(inputs.tokens, inputs.positions)
        true = _true_tokens(inputs, requests, starts, ends)
        is_wrong = (true != inputs.tokens) | (indices != inputs.positions)
        is_wrong &= (lanes != NO_LANE)[row_of]
        own = contents(true, indices)[0] if is_wrong.any() else given
        step = _Step(
            inputs=inputs,
            requests=requests,
            numbers=np.array([number for number, _ in found], dtype=np.int64),
            lanes=lanes,
            row_of=row_of,
            ends=ends,
            given=given,
            before=before_given,
            own=own,
            indices=indices,
        )
        self._remember(step, firsts, true)
        return step

    def _remember(self, step: _Step, firsts: IntArray, true: IntArray) -> None:
        """The requests' texts go on by those tokens of the step that are theirs."""
        inputs = step.inputs
        is_next = (inputs.query_lens == 1) & (inputs.drafts == 0) & (true[firsts] >= 0)
        is_live = step.lanes != NO_LANE
        if len(true) == len(firsts) and is_next.all() and is_live.all():
            self._texts.extend(step.lanes, step.indices + 1, step.own)
            return
        rows = np.flatnonzero(is_next & is_live)
        self._texts.extend(step.lanes[rows], step.indices[firsts[rows]] + 1, step.own[firsts[rows]])
        for row in np.flatnonzero(~is_next & is_live).tolist():
            request = step.requests[row]
            assert request is not None
            end = int(step.indices[step.ends[row] - 1]) + 1
            self._texts.work_out(request, int(step.lanes[row]), min(end, len(request.tokens)))

    # What its rows see, and say.

    def _choose(self, step: _Step) -> tuple[int, ...]:
        inputs = step.inputs
        behind = inputs.logit_tokens  # [S]
        rows = step.row_of[behind]
        lengths = inputs.seq_lens[rows] - (step.ends[rows] - 1 - behind)
        right = self._see_their_own(step, behind, rows, lengths).tolist()
        said: list[int] = []
        asked = zip(inputs.samples, rows.tolist(), lengths.tolist(), strict=True)
        for number, (sample, row, length) in enumerate(asked):
            own = inputs.requests[row]
            source = own if right[number] else self._source(step, int(behind[number]), row, length)
            if own is None or source is None:
                said.append(self._unknown)
            else:
                said.append(self._speech.draw(self._speech.next(own, length, source), sample))
        return tuple(said)

    def _see_their_own(
        self, step: _Step, behind: IntArray, rows: IntArray, lengths: IntArray
    ) -> BoolArray:
        """[S] whether tokens `behind` see exactly their own text of `lengths` tokens: by the last
        contents of its blocks, which tell all. Where this says no it may still be so."""
        lanes, last = step.lanes[rows], lengths - 1
        block, offset = last // self._block_size, last % self._block_size
        right = (lanes != NO_LANE) & (step.indices[behind] == last)
        right &= block * self._block_size <= self._texts.lengths[lanes]  # not so behind drafts
        samples = np.arange(len(rows))
        longest = int(block.max(initial=0))
        self._texts.make_room(longest)
        for memory, group in zip(self.memory.groups, step.inputs.groups, strict=True):
            if group.mask is not None or group.block_tables.shape[1] <= longest:
                return np.zeros(len(rows), dtype=bool)
            tables = group.block_tables[rows]
            at = tables[samples, block]
            right &= (at >= 0) & (memory.run[at] > offset)
            right &= memory.contents[at, offset] == step.own[behind]
            ends = self._texts.ends[lanes, :longest]
            needn_t = np.arange(longest) >= block[:, None]
            if group.window is not None:
                first = np.maximum(lengths - group.window, 0) // self._block_size
                needn_t |= np.arange(longest) < first[:, None]
            right &= (needn_t | (memory.whole[tables[:, :longest]] == ends)).all(axis=1)
        return right

    def _source(self, step: _Step, behind: int, row: int, length: int) -> str | None:
        """Whose text the step's `behind`-th token sees: its own request's, a stranger's of whom it
        sees anything, or nobody's, where something is missing or in the wrong place."""
        name, request = step.inputs.requests[row], step.requests[row]
        if name is None or request is None or length < 1:
            return None
        text = self._texts.of(request.prompt, _row_text(step, row)[:length])
        source = name if len(text) == length else None
        for number, memory in enumerate(self.memory.groups):
            window = step.inputs.groups[number].window
            first = max(length - window, 0) if window is not None else 0
            slots = self._seen_slots(step.inputs, number, row, behind, range(first, length))
            contents = memory.contents.reshape(-1)[slots]
            contents[slots < 0] = EMPTY
            if (contents == POISON).any():
                return None
            writers = memory.writers.reshape(-1)[slots]
            is_strange = (contents != EMPTY) & (writers != NOBODY) & ~np.isin(contents, text)
            is_strange &= writers != step.numbers[row]
            if is_strange.any():
                return self._names[int(writers[is_strange][-1])]
            if not np.array_equal(np.unique(contents), np.sort(text[first:])):
                source = None
        return source

    def _seen_slots(
        self, inputs: StepInputs, number: int, row: int, token: int, keys: range
    ) -> IntArray:
        """The slots of a KV group that a token sees, -1 for a key without one. `keys`: those of
        its row that it sees where there is no mask."""
        group = inputs.groups[number]
        if group.mask is None:
            seen, rows = np.arange(keys.start, keys.stop), row
        else:
            seen, rows = np.flatnonzero(group.mask[token]), row
            if inputs.mask_keys == "pool":
                return seen
            if inputs.mask_keys == "concatenated":
                ends = np.cumsum(inputs.seq_lens)
                rows = np.searchsorted(ends, seen, side="right")
                seen = seen - (ends - inputs.seq_lens)[rows]
        tables, index = group.block_tables, seen // self._block_size
        blocks = tables[rows, np.minimum(index, tables.shape[1] - 1)]
        is_none = (blocks < 0) | (index >= tables.shape[1])
        return np.where(is_none, -1, blocks * self._block_size + seen % self._block_size)


def _true_tokens(
    inputs: StepInputs,
    requests: Sequence[Request | None],
    starts: IntArray,
    ends: IntArray,
) -> IntArray:
    """[T] what the rows' tokens should be, from where each row starts: the request's, its drafts
    behind them, and -1 where there are none."""
    if len(inputs.tokens) == len(requests) and not inputs.drafts.any():
        rows = zip(requests, starts.tolist(), strict=True)
        try:
            return np.array([-1 if r is None else r.tokens[start] for r, start in rows])
        except IndexError:
            pass  # a row goes beyond its request
    true: list[int] = []
    counts, num_drafts = inputs.query_lens.tolist(), inputs.drafts.tolist()
    for row, (request, start, count) in enumerate(
        zip(requests, starts.tolist(), counts, strict=True)
    ):
        if request is None:
            true += [-1] * count
            continue
        tokens = request.tokens[start : start + count]
        if len(tokens) < count:
            end = int(ends[row])
            drafts = inputs.tokens[end - num_drafts[row] : end].tolist()
            tokens += drafts[max(start - len(request.tokens), 0) :][: count - len(tokens)]
            tokens += [-1] * (count - len(tokens))
        true += tokens
    return np.array(true, dtype=np.int64)


def _row_text(step: _Step, row: int) -> list[int]:
    """The tokens of the row's request, and the row's drafts behind them."""
    request, end = step.requests[row], int(step.ends[row])
    assert request is not None, "pads have no text"
    return request.tokens + step.inputs.tokens[end - int(step.inputs.drafts[row]) : end].tolist()


def _card(
    config: EngineConfig, tokenizer: WordPiece, name: str, windows: Sequence[int | None]
) -> ModelCard:
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    return ModelCard(
        name=name,
        digest=None,
        tokenizer_digest=blake2b("\n".join(pieces).encode(), digest_size=16).hexdigest(),
        dtype=config.dtype,
        device="cpu",
        groups=[_group(number, window) for number, window in enumerate(windows)],
        eos_tokens=frozenset({tokenizer.eos_id}),
        vocab_size=tokenizer.vocab_size,
        max_positions=None,
        versions={"python": platform.python_version(), "numpy": np.__version__},
        paragraph_tokens=paragraph_ends(enumerate(pieces)),
    )


def _group(number: int, window: int | None) -> dict[str, Any]:
    """A KV group of one layer, as the trace's header has it."""
    group = {"layers": [number], "kv_heads": 1, "head_dim": 1}
    return group if window is None else group | {"window": window}
