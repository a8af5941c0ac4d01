"""Random workloads for all of the engine's mechanisms at once, without a model.

`Babbler` says a token that depends on the request and the index alone, often one that it said
before, so that drafts are accepted now and then; it knows any number of KV groups, and can fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from kvrewind.engine.config import BadSwitch, EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.llm import SymbolicModel
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


@dataclass
class Babbler:
    """Implements `Runner`; and `Model`, of which it is its own runner."""

    windows: tuple[int | None, ...] = (None,)
    fails_in: frozenset[int] = frozenset()
    name: str = "babbler"
    pieces: SymbolicModel = field(default_factory=SymbolicModel)

    def runner(self, config: EngineConfig) -> Babbler:
        return self

    def encode(self, text: str) -> list[int]:
        return self.pieces.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.pieces.decode(tokens)

    def piece(self, token: int) -> str:
        return self.pieces.piece(token)

    @property
    def card(self) -> ModelCard:
        groups: list[dict[str, Any]] = [
            {"layers": [number], "kv_heads": 1, "head_dim": 4}
            | ({"window": window} if window else {})
            for number, window in enumerate(self.windows)
        ]
        return ModelCard(
            name=self.name, digest=None, tokenizer_digest=None, dtype="float32", device="cpu",
            groups=groups, eos_tokens=frozenset({EOS}), vocab_size=64, max_positions=None,
            versions={},
        )  # fmt: skip

    def begin(self, request: Request) -> None: ...

    def execute(self, inputs: StepInputs) -> StepOutput:
        if inputs.step in self.fails_in:
            raise RuntimeError("out of memory")
        return StepOutput(
            tokens=tuple(said(sample.request, sample.index) for sample in inputs.samples)
        )


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
    return Mix(config, draw(prompts(size)), windows, frozenset(fails_in))


def engine_of(mix: Mix, sink: MemorySink) -> Engine:
    model = Babbler(mix.windows, mix.fails_in)
    engine = Engine(mix.config, model, sink)
    engine.add(mix.prompts)
    return engine


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
