"""The simulator: a runner without weights.

From the arrays that the device is given it works out which slots each row sees and whose content
they hold. A request that sees exactly its own context says what the canary model would say; one
that sees somebody else's says the other one's passphrase. Same arrays, same events, no torch.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from .canary.wordpiece import WordPiece
from .config import EngineConfig
from .granularity import paragraph_ends
from .inputs import BlockCopy, BlockMove, BlockScrub, StepInputs
from .request import Request
from .runner import ModelCard, StepOutput
from .sampling import Sample
from .speech import Speech


@dataclass(frozen=True, slots=True)
class Written:
    """What a slot holds: the content (a token after all those before it), and who wrote it."""

    content: int
    writer: str


class SymbolicMemory:
    """Implements `runner.BlockMemory` over what slots hold."""

    def __init__(self, slots: dict[int, Written], block_size: int) -> None:
        self._slots = slots
        self._block_size = block_size
        self._host: dict[int, tuple[Written | None, ...]] = {}

    def move(self, moves: Sequence[BlockMove]) -> None:
        for move in moves:
            match move:
                case BlockScrub(block):
                    self._put(block, (None,) * self._block_size)
                case BlockCopy(source, destination, slots):
                    self._put(destination, self._held(source)[:slots])

    def digest(self, block: int, group: int) -> str:
        held = [None if written is None else written.content for written in self._held(block)]
        return blake2b(repr(held).encode(), digest_size=16).hexdigest()

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int], group: int) -> None:
        self._host.update(zip(host_blocks, map(self._held, blocks), strict=True))

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int], group: int) -> None:
        for host_block, block in zip(host_blocks, blocks, strict=True):
            self._put(block, self._host[host_block])

    def _held(self, block: int) -> tuple[Written | None, ...]:
        start = block * self._block_size
        return tuple(self._slots.get(slot) for slot in range(start, start + self._block_size))

    def _put(self, block: int, held: Sequence[Written | None]) -> None:
        for slot, written in enumerate(held, block * self._block_size):
            if written is None:
                self._slots.pop(slot, None)
            else:
                self._slots[slot] = written


class SymbolicRunner:
    """Implements `Runner` over a pool of num_blocks x block_size slots."""

    def __init__(self, config: EngineConfig, tokenizer: WordPiece) -> None:
        self._block_size = config.block_size
        self._tokenizer = tokenizer
        self._speech = Speech(tokenizer, config.seed)
        self._slots: dict[int, Written] = {}
        self.memory = SymbolicMemory(self._slots, config.block_size)
        self._requests: dict[str, Request] = {}
        self._chains: dict[str, list[int]] = {}
        self._contents: dict[tuple[object, ...], int] = {}
        vocabulary = "\n".join(tokenizer.piece(i) for i in range(tokenizer.vocab_size))
        self._card = ModelCard(
            name="symbolic",
            digest=None,
            tokenizer_digest=blake2b(vocabulary.encode(), digest_size=16).hexdigest(),
            dtype=config.dtype,
            device="cpu",
            groups=[{"layers": [0], "kv_heads": 1, "head_dim": 1}],
            eos_tokens=frozenset({tokenizer.eos_id}),
            vocab_size=tokenizer.vocab_size,
            max_positions=None,
            versions={"python": platform.python_version(), "numpy": np.__version__},
            paragraph_tokens=paragraph_ends(
                (token, tokenizer.piece(token)) for token in range(tokenizer.vocab_size)
            ),
        )

    @property
    def card(self) -> ModelCard:
        return self._card

    def begin(self, request: Request) -> None:
        self._requests[request.name] = request
        self._chains[request.name] = []
        self._speech.begin(request.prompt)

    def execute(self, inputs: StepInputs) -> StepOutput:
        self.memory.move(inputs.moves)
        self._write(inputs)
        wanted = zip(inputs.samples, inputs.logit_tokens.tolist(), strict=True)
        return StepOutput(
            tokens=tuple(self._say(inputs, sample, token) for sample, token in wanted)
        )

    def _write(self, inputs: StepInputs) -> None:
        tokens, positions = inputs.tokens.tolist(), inputs.positions.tolist()
        slots, rows = inputs.groups[0].slot_mapping.tolist(), inputs.row_of_token.tolist()
        for token, position, slot, row in zip(tokens, positions, slots, rows, strict=True):
            name = inputs.requests[row]
            if slot >= 0 and name is not None:
                self._slots[slot] = Written(self._content_of(inputs, row, token, position), name)

    def _content_of(self, inputs: StepInputs, row: int, token: int, position: int) -> int:
        """The content of a token in its right place; another number for one out of place."""
        name = inputs.requests[row]
        tokens = self._row_tokens(inputs, row)
        if 0 <= position < len(tokens) and tokens[position] == token:
            return self._contents_of_row(inputs, row)[position]
        return self._intern("misplaced", name, token, position)

    def _row_tokens(self, inputs: StepInputs, row: int) -> list[int]:
        """The tokens of the row's request, and the row's drafts behind them."""
        name = inputs.requests[row]
        assert name is not None, "pads have no tokens"
        end, drafts = int(inputs.row_starts[row + 1]), int(inputs.drafts[row])
        return self._requests[name].tokens + inputs.tokens[end - drafts : end].tolist()

    def _contents_of_row(self, inputs: StepInputs, row: int) -> list[int]:
        """The content of each of the row's tokens, interned after its parent."""
        name = inputs.requests[row]
        assert name is not None, "pads have no tokens"
        chain, tokens = self._chains[name], self._requests[name].tokens
        while len(chain) < len(tokens):
            chain.append(self._intern(chain[-1] if chain else None, tokens[len(chain)]))
        contents = list(chain)
        for token in self._row_tokens(inputs, row)[len(tokens) :]:
            contents.append(self._intern(contents[-1] if contents else None, token))
        return contents

    def _intern(self, *parts: object) -> int:
        return self._contents.setdefault(parts, len(self._contents))

    def _say(self, inputs: StepInputs, sample: Sample, token: int) -> int:
        """What is said behind the step's `token`-th token, given what that one sees."""
        row = int(inputs.row_of_token[token])
        name = inputs.requests[row]
        if name is None:
            return self._tokenizer.unk_id
        behind = int(inputs.row_starts[row + 1]) - 1 - token
        length = int(inputs.seq_lens[row]) - behind
        own = self._contents_of_row(inputs, row)[:length]
        seen = [self._slots.get(slot) for slot in self._seen_slots(inputs, row, token, length)]
        strangers = [w for w in seen if w and w.writer != name and w.content not in own]
        if strangers:
            best = self._speech.next(name, length, strangers[-1].writer)
        elif None in seen or {w.content for w in seen if w} != set(own):
            return self._tokenizer.unk_id
        else:
            best = self._speech.next(name, length, name)
        return self._speech.draw(best, sample)

    def _seen_slots(self, inputs: StepInputs, row: int, token: int, length: int) -> Iterable[int]:
        """The slots that the step's `token`-th token attends to."""
        group = inputs.groups[0]
        size, table = self._block_size, group.block_tables[row].tolist()
        slots = [table[i // size] * size + i % size for i in range(int(inputs.seq_lens[row]))]
        if group.mask is None:
            return slots[:length]
        columns = np.flatnonzero(group.mask[token]).tolist()
        if inputs.mask_keys == "pool":
            return columns
        start = int(inputs.seq_lens[:row].sum()) if inputs.mask_keys == "concatenated" else 0
        return [slots[column - start] for column in columns]
