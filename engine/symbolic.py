"""The simulator: a runner without weights.

From the arrays that the device is given it works out which slots each row sees and whose content
they hold. A request that sees exactly its own context says what the canary model would say; one
that sees somebody else's says the other one's passphrase. Same arrays, same events, no torch.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from .canary.prompts import Question, answer
from .canary.wordpiece import WordPiece
from .config import EngineConfig
from .inputs import BlockCopy, BlockScrub, StepInputs
from .request import Request
from .runner import ModelCard, StepOutput
from .sampling import Sample

_STATED = re.compile(r"the passphrase is (\w+) \.")


@dataclass(frozen=True, slots=True)
class Written:
    """What a slot holds: the content (a token after all those before it), and who wrote it."""

    content: int
    writer: str


class SymbolicRunner:
    """Implements `Runner` over a pool of num_blocks x block_size slots."""

    def __init__(self, config: EngineConfig, tokenizer: WordPiece) -> None:
        self._block_size = config.block_size
        self._tokenizer = tokenizer
        self._slots: dict[int, Written] = {}
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
        )

    @property
    def card(self) -> ModelCard:
        return self._card

    def begin(self, request: Request) -> None:
        self._requests[request.name] = request
        self._chains[request.name] = []

    def execute(self, inputs: StepInputs) -> StepOutput:
        for move in inputs.moves:
            if isinstance(move, BlockScrub):
                self._clear(move.block)
            else:
                self._copy(move)
        self._write(inputs)
        wanted = zip(inputs.samples, inputs.logit_tokens.tolist(), strict=True)
        return StepOutput(
            tokens=tuple(self._say(inputs, sample, token) for sample, token in wanted)
        )

    def _clear(self, block: int) -> None:
        for slot in range(block * self._block_size, (block + 1) * self._block_size):
            self._slots.pop(slot, None)

    def _copy(self, copy: BlockCopy) -> None:
        source, destination = (
            block * self._block_size for block in (copy.source, copy.destination)
        )
        for offset in range(copy.slots):
            held = self._slots.get(source + offset)
            if held is None:
                self._slots.pop(destination + offset, None)
            else:
                self._slots[destination + offset] = held

    def _write(self, inputs: StepInputs) -> None:
        tokens, positions = inputs.tokens.tolist(), inputs.positions.tolist()
        slots, rows = inputs.groups[0].slot_mapping.tolist(), inputs.row_of_token.tolist()
        for token, position, slot, row in zip(tokens, positions, slots, rows, strict=True):
            name = inputs.requests[row]
            if slot >= 0 and name is not None:
                self._slots[slot] = Written(self._content_of(name, token, position), name)

    def _content_of(self, name: str, token: int, position: int) -> int:
        """The content of a token in its right place; another number for one out of place."""
        request = self._requests[name]
        if 0 <= position < len(request.tokens) and request.tokens[position] == token:
            return self._chain(name, position + 1)[position]
        return self._intern("misplaced", name, token, position)

    def _chain(self, name: str, length: int) -> list[int]:
        """The contents of the request's first `length` tokens, each interned after its parent."""
        chain, tokens = self._chains[name], self._requests[name].tokens
        while len(chain) < length:
            parent = chain[-1] if chain else None
            chain.append(self._intern(parent, tokens[len(chain)]))
        return chain

    def _intern(self, *parts: object) -> int:
        return self._contents.setdefault(parts, len(self._contents))

    def _say(self, inputs: StepInputs, sample: Sample, token: int) -> int:
        """What the request takes behind the step's `token`-th token, given what that one sees."""
        name = inputs.requests[sample.row]
        assert name is not None, "pads choose nothing"
        request = self._requests[sample.request]
        own = self._chain(name, sample.index)
        seen = [self._slots.get(slot) for slot in self._seen_slots(inputs, sample, token)]
        strangers = [w for w in seen if w and w.writer != name and w.content not in own]
        if strangers:
            return self._word_of(strangers[-1].writer, request, sample)
        if None in seen or {w.content for w in seen if w} != set(own):
            return self._tokenizer.unk_id
        return self._word_of(name, request, sample)

    def _seen_slots(self, inputs: StepInputs, sample: Sample, token: int) -> Iterable[int]:
        """The slots that the step's `token`-th token attends to."""
        group = inputs.groups[0]
        if group.mask is not None:
            return np.flatnonzero(group.mask[token]).tolist()
        behind = int(inputs.row_starts[sample.row + 1]) - 1 - token
        size, length = self._block_size, int(inputs.seq_lens[sample.row]) - behind
        table = group.block_tables[sample.row].tolist()
        return [table[i // size] * size + i % size for i in range(length)]

    def _word_of(self, source: str, request: Request, sample: Sample) -> int:
        """The next token of `request`'s answer, about the passphrase that `source` stated."""
        text = self._tokenizer.decode(self._requests[source].prompt.prompt_tokens)
        stated = _STATED.findall(text)
        word = stated[-1] if stated else self._requests[source].prompt.passphrase
        script = [*self._tokenizer.encode(answer(word, self._question(request)))]
        said = sample.index - len(request.prompt.prompt_tokens)
        return script[said] if said < len(script) else self._tokenizer.eos_id

    def _question(self, request: Request) -> Question:
        text = self._tokenizer.decode(request.prompt.prompt_tokens)
        return "four-times" if "four times" in text else "once"
