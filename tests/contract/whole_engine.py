"""Random workloads for all of the engine's mechanisms at once, without a model.

`Babbler` says a token that depends on the request and the index alone, often one that it said
before, so that drafts are accepted now and then; it knows any number of KV groups, and can fail.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from kvrewind.engine.config import BadSwitch, EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.inputs import BlockMove, BlockScrub, StepInputs
from kvrewind.engine.llm import make_engine
from kvrewind.engine.request import Prompt, Request, Status
from kvrewind.engine.runner import ModelCard, StepOutput
from kvrewind.engine.sampling import uniform
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.state import part_of

EOS = 2
TOKENS = st.integers(3, 7)


@dataclass(frozen=True)
class Mix:
    config: EngineConfig
    prompts: tuple[Prompt, ...]
    windows: tuple[int | None, ...] = (None,)
    fails_in: frozenset[int] = frozenset()
    """Steps that raise."""
    epochs: tuple[EpochChange, ...] = ()

    @property
    def model(self) -> BabblerModel:
        return BabblerModel(self.windows, self.fails_in)


class Memory:
    """Implements `BlockMemory`: what each slot holds, as (request's text so far, for whom)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: dict[tuple[int, int], Hashable] = {}
        self.host: dict[int, list[Hashable]] = {}

    def span(self, block: int) -> range:
        return range(block * self.size, (block + 1) * self.size)

    def held(self, block: int, group: int) -> list[Hashable]:
        return [self.slots.get((group, slot)) for slot in self.span(block)]

    def put(self, block: int, group: int, held: Sequence[Hashable]) -> None:
        for slot, content in zip(self.span(block), held, strict=False):
            self.slots[group, slot] = content

    def move(self, moves: Sequence[BlockMove]) -> None:
        for move in moves:
            if isinstance(move, BlockScrub):
                self.put(move.block, move.group, [move.how] * self.size)
            else:
                held = self.held(move.source, move.group)[: move.slots]
                self.put(move.destination, move.group, held)

    def digest(self, block: int, group: int) -> str:
        return str(hash(tuple(self.held(block, group))))

    def store(self, blocks: Sequence[int], host_blocks: Sequence[int], group: int) -> None:
        for block, host in zip(blocks, host_blocks, strict=True):
            self.host[host] = self.held(block, group)

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int], group: int) -> None:
        for host, block in zip(host_blocks, blocks, strict=True):
            self.put(block, group, self.host[host])


class Babbler:
    """Implements `Runner`, and notes every key that a row sees and that isn't its own text's."""

    def __init__(
        self, windows: tuple[int | None, ...], size: int, fails_in: frozenset[int] = frozenset()
    ) -> None:
        self.memory = Memory(size)
        self.wrong: list[str] = []
        self._windows, self._fails_in, self._size = windows, fails_in, size
        self._requests: dict[str, Request] = {}
        self._failed: set[str | None] = set()
        """Their rows in the step that was in flight meanwhile see what was never computed."""

    @property
    def card(self) -> ModelCard:
        groups: list[dict[str, Any]] = [
            {"layers": [number], "kv_heads": 1, "head_dim": 4}
            | ({"window": window} if window else {})
            for number, window in enumerate(self._windows)
        ]
        return ModelCard(
            name="babbler", digest=None, tokenizer_digest=None, dtype="float32", device="cpu",
            groups=groups, eos_tokens=frozenset({EOS}), vocab_size=64, max_positions=None,
            versions={},
        )  # fmt: skip

    def begin(self, request: Request) -> None:
        self._requests[request.name] = request

    def execute(self, inputs: StepInputs) -> StepOutput:
        self.memory.move(inputs.moves)
        if inputs.step in self._fails_in:
            self._failed.update(inputs.requests, (s.request for s in inputs.samples))
            raise RuntimeError("out of memory")
        for number, group in enumerate(inputs.groups):
            own = [self._text(inputs, row) for row in range(len(inputs.requests))]
            for row, texts in enumerate(own):
                start = int(inputs.row_starts[row])
                for position, text in texts.items():
                    at = start + position - min(texts)
                    self.memory.slots[number, int(group.slot_mapping[at])] = text
            for row, texts in enumerate(own):
                if texts and inputs.requests[row] not in self._failed:
                    self._look(inputs, number, row, texts)
        return StepOutput(
            tokens=tuple(said(sample.request, sample.index) for sample in inputs.samples)
        )

    def _text(self, inputs: StepInputs, row: int) -> dict[int, Hashable]:
        """Position -> what the row's token there comes to; nothing for a pad."""
        name = inputs.requests[row]
        if name is None:
            return {}
        start, stop = inputs.row_starts[row : row + 2]
        tokens = inputs.tokens[start:stop].tolist()
        first = int(inputs.positions[start])
        before = self._requests[name].tokens[:first]
        return {
            first + j: self._content(name, (*before, *tokens[: j + 1])) for j in range(len(tokens))
        }

    def _content(self, name: str, text: tuple[int, ...]) -> Hashable:
        prompt = self._requests[name].prompt
        return text, prompt.adapter, tuple(k for k in prompt.extra_keys if k[0] < len(text))

    def _look(self, inputs: StepInputs, number: int, row: int, new: dict[int, Hashable]) -> None:
        name = str(inputs.requests[row])
        window, table = self._windows[number], inputs.groups[number].block_tables[row]
        first = min(new)
        own = {
            p: self._content(name, tuple(self._requests[name].tokens[: p + 1]))
            for p in range(first)
        }
        for position, wanted in {**own, **new}.items():
            if window is not None and position <= first - window:
                continue
            block = int(table[position // self._size])
            slot = block * self._size + position % self._size
            found = self.memory.slots.get((number, slot))
            if block < 0 or found != wanted:
                self.wrong.append(
                    f"step {inputs.step}, group {number}: {name} sees {found} in slot {slot} as "
                    f"its token {position}, and not {wanted}"
                )


@dataclass(frozen=True)
class BabblerModel:
    """A model whose runner is a `Babbler`."""

    windows: tuple[int | None, ...] = (None,)
    fails_in: frozenset[int] = frozenset()
    name: str = "babbler"

    def runner(self, config: EngineConfig) -> Babbler:
        return Babbler(self.windows, config.block_size, self.fails_in)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 64 for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.piece(token) for token in tokens)

    def piece(self, token: int) -> str:
        return f"w{token}"


def said(request: str, index: int) -> int:
    """A quarter of the requests repeat themselves, the others do sometimes; all may stop."""
    drawn = int(uniform(0, request, index) * 1000)
    if drawn < 30:
        return EOS
    is_dull = uniform(0, request, 0) < 0.25
    return 3 + (0 if is_dull or drawn < 300 else drawn % 5)


@st.composite
def prompts(draw: st.DrawFn, size: int) -> tuple[Prompt, ...]:
    """Some begin alike, some with another's second block, some leave early, some are sampled
    several times."""
    bases = [draw(st.lists(TOKENS, min_size=4 * size, max_size=4 * size)) for _ in range(2)]
    made = []
    for number in range(draw(st.integers(2, 6))):
        base = draw(st.sampled_from([bases[0], *bases]))
        start = draw(st.sampled_from([0, 0, 0, size]))
        kept = draw(st.integers(start + 1, len(base)))
        arrival = draw(st.integers(1, 8))
        tokens = (*base[start:kept], *draw(st.lists(TOKENS, max_size=2 * size)))
        extra = draw(st.sampled_from([(), (), (), ((0, "salt"),), ((size + 1, "image"),)]))
        made.append(
            Prompt(
                request=f"r{number}",
                prompt_tokens=tokens,
                max_new_tokens=draw(st.integers(1, 3 * size)),
                arrival_step=arrival,
                abort_step=draw(st.none() | st.none() | st.integers(arrival, arrival + 8)),
                tenant=draw(st.sampled_from([None, None, "t"])),
                adapter=draw(st.sampled_from([None, None, None, "lora"])),
                extra_keys=extra,
                priority=draw(st.sampled_from([0, 0, 0, 1, -1])),
                n=draw(st.sampled_from([1, 1, 1, 2, 3])),
                pin=draw(st.sampled_from([False, False, True])),
                retention=draw(st.sampled_from([0, 0, 2])),
                ignore_eos=draw(st.booleans()),
            )
        )
    return tuple(made)


@st.composite
def mixes(draw: st.DrawFn, **fixed: Any) -> Mix:
    """Any combination of switches that may go together, and a workload that fits its pool."""
    size = draw(st.sampled_from([2, 4]))
    reuse = draw(st.sampled_from(["first-freed", "last-freed", "quarantine=3"]))
    kept_back = 3 if reuse == "quarantine=3" else 0
    switches: dict[str, Any] = {
        "block_size": size,
        "num_blocks": draw(st.sampled_from([9, 9, 10, 12, 24])) + kept_back,
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([4, 7, 16, 64])),
        "continuous_batching": draw(st.sampled_from([True, True, False])),
        "chunked_prefill": draw(st.booleans()),
        "preemption": draw(st.sampled_from([True, True, False])),
        "steps_in_flight": draw(st.sampled_from([1, 1, 2])),
        "speculation": draw(st.sampled_from([0, 0, 1, 3])),
        "prefix_cache": draw(st.sampled_from([True, True, True, False])),
        "sharing": draw(st.sampled_from(["tenant", "tenant", "global", "off"])),
        "granularity": draw(st.sampled_from(["block", "block", "paragraph", "prompt", "sequence"])),
        "reuse": reuse,
        "scrub": draw(st.sampled_from(["none", "none", "zero", "nan"])),
        "scrub_at": draw(st.sampled_from(["free", "allocation"])),
        "host_blocks": draw(st.sampled_from([0, 0, 3, 12])),
        "transfer_steps": draw(st.integers(1, 3)),
        "layout": draw(st.sampled_from(["packed"] * 3 + ["padded-left", "padded-right", "dense"])),
        "persistent_buffers": draw(st.sampled_from([False, False, True])),
        "attention": draw(st.sampled_from(["fast", "reference"])),
    } | fixed
    try:
        config = EngineConfig(**switches)
    except BadSwitch:
        assume(False)
        raise
    windows = draw(st.sampled_from([(None,), (None,), (None, 5), (3,), (None, 4, 9)]))
    fails_in = draw(st.sampled_from([(), (), (), (5,), (3, 9)]))
    changes = st.builds(
        EpochChange,
        what=st.sampled_from(["weights", "adapter", "pool"]),
        epoch=st.integers(2, 4),
        adapter=st.just("lora"),
        step=st.integers(1, 14),
    )
    epochs = draw(st.lists(changes, max_size=2) if draw(st.booleans()) else st.just([]))
    return Mix(config, draw(prompts(size)), windows, frozenset(fails_in), tuple(epochs))


def engine_of(mix: Mix, sink: MemorySink) -> tuple[Engine, Babbler]:
    runner = mix.model.runner(mix.config)
    engine = make_engine(mix.model, mix.config, mix.prompts, sink, runner=runner)
    for change in mix.epochs:
        engine.change_epoch(change)
    return engine, runner


def own_summary(engine: Engine) -> dict[str, Any]:
    """The engine's own state in the words of `State.summary`."""
    live = {n: r for n, r in engine.requests.items() if r.status is not Status.FINISHED}
    parts: dict[str, Any] = {"tokens": {n: tuple(r.tokens) for n, r in live.items()}}
    for group, pool in enumerate(engine.pools):
        index: dict[str, list[int]] = {}
        for entry in pool.cache.entries():
            index.setdefault(entry.key, []).append(entry.block)
        of_pool = {
            "blocks": tuple(
                (
                    block.generation,
                    block.ref_count,
                    tuple(sorted(block.holders)),
                    block.entry.key if block.entry else None,
                )
                for block in pool.blocks
            ),
            "free": pool.free_queue(),
            "tables": {n: e for n, r in live.items() if (e := r.tables[group].entries())},
            "index": {key: tuple(sorted(blocks)) for key, blocks in index.items()},
        }
        parts |= {part_of(name, group): value for name, value in of_pool.items()}
    return parts
