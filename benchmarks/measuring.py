"""What the benchmarks share: taking turns, two clocks, and what the figures were measured on.

The machine that these run on may have other work. So the contenders of one comparison take turns
in one process, processor time is measured beside the wall's, and ratios are within one run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import transformers
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.garbage import rarely_collected
from kvrewind.engine.llm import Model, make_engine
from kvrewind.engine.models import LoadedModel
from kvrewind.engine.request import Prompt
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.sink import NullSink, Sink
from kvrewind.replay.memory_account import MemoryAccount
from kvrewind.replay.memory_report import Memory
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

Key = TypeVar("Key")


class Clocks(NamedTuple):
    """Seconds of one piece of work: by the wall, and of the processor, all threads together."""

    seconds: float
    processor: float


def timed(work: Callable[[], object]) -> Clocks:
    with rarely_collected():
        started, used = time.perf_counter(), time.process_time()
        work()
        return Clocks(time.perf_counter() - started, time.process_time() - used)


def in_turns(contenders: Mapping[Key, Callable[[], object]], repeats: int) -> dict[Key, Clocks]:
    """The least that each took, by each clock, over `repeats` rounds."""
    taken: dict[Key, list[Clocks]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, work in contenders.items():
            taken[name].append(timed(work))
    return {name: Clocks(*map(min, zip(*runs, strict=True))) for name, runs in taken.items()}


def serve(
    model: Model, config: EngineConfig, prompts: list[Prompt], sink: Sink | None = None
) -> Engine:
    """One run of the engine, to its end."""
    engine = make_engine(model, config, prompts, sink or NullSink(), define_pieces=False)
    engine.run()
    return engine


def memory_of(model: Model, config: EngineConfig, prompts: list[Prompt]) -> Memory:
    """The memory account of such a run."""
    sink, account = MemorySink(), MemoryAccount()
    serve(model, config, prompts, sink)
    for envelope in sink.envelopes:
        account.see(envelope)
    return account.report()


def plain_model(model: LoadedModel) -> Any:
    """The same weights as transformers runs them; it generates to the end."""
    plain = AutoModelForCausalLM.from_pretrained(model.directory, dtype=torch.float32).eval()
    plain.generation_config.eos_token_id = None
    return plain


def generate(
    plain: Any, prompts: Sequence[Sequence[int]], new_tokens: int, **settings: Any
) -> list[list[int]]:
    """`plain.generate` over one batch, padded on the left: what is new of each."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    greedy = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, **{"use_cache": True} | settings
    )
    out = plain.generate(ids, attention_mask=mask, generation_config=greedy)
    return out[:, longest:].tolist()


def our_decoding(model: Model, config: EngineConfig, prompts: list[Prompt]) -> Callable[[], object]:
    """A decode step of these prompts, which are prefilled in one step."""
    engine = make_engine(model, config, prompts, NullSink(), define_pieces=False)
    engine.advance()
    return engine.advance


@torch.inference_mode()
def their_decoding(plain: Any, prompts: Sequence[Sequence[int]], cache: Any) -> Callable[[], None]:
    """The same by transformers over a cache of its own; the prompts are of one length."""
    last = _greedy(plain, torch.tensor([list(p) for p in prompts]), cache)

    @torch.inference_mode()
    def step() -> None:
        nonlocal last
        last = _greedy(plain, last, cache)

    return step


def _greedy(plain: Any, tokens: Tensor, cache: Any) -> Tensor:
    """[rows, n] -> [rows, 1] the tokens that come next."""
    logits = plain(tokens, cache=cache, use_cache=True, logits_to_keep=1).logits
    return logits[:, -1:].argmax(-1)


def repeated(step: Callable[[], object], times: int) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(times):
            step()

    return steps


def machine() -> str:
    """Processor, versions and load, for the line above a table."""
    busy = f"{os.getloadavg()[0]:.0f}" if hasattr(os, "getloadavg") else "?"
    return (
        f"{_processor()}, {os.cpu_count()} cores, load {busy} at the start, "
        f"{torch.get_num_threads()} threads; python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )


def _processor() -> str:
    """As Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), "?")
