"""Tokens per second of our engine beside transformers' own, on one machine, in one run.

    python benchmarks/serving.py [--threads N] [--repeats N] [--quick] [--vllm PYTHON]

SmolLM2-135M on the CPU, float32, greedy: 16 requests of 84 to 100 prompt tokens, the first 66 of
which are equal, 32 new tokens each. The best of the repeats counts, and the contenders take turns,
so that a busy minute hits all of them. On a machine with other work compare processor time.
PYTHON is the interpreter of an environment that has vLLM's CPU build.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import make_engine
from kvrewind.engine.models import LoadedModel, load_model
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import Event
from kvrewind.recorder.writer import TraceWriter
from measuring import machine
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

REQUESTS = 16
SHARED = 66
NEW_TOKENS = 32
CONFIG = EngineConfig(max_num_seqs=REQUESTS)
SIZED_AS_OURS = ContinuousBatchingConfig(
    page_size=CONFIG.block_size,
    num_blocks=CONFIG.num_blocks,
    max_batch_tokens=CONFIG.max_num_batched_tokens,
)
"""By default it takes what memory it finds; with our sizes it starts faster."""

BASE = "transformers generate_batch"

PREAMBLE = (
    "You answer questions about the rivers of Europe for visitors of a museum. Be brief, be "
    "friendly, name the countries that each river runs through before anything else, and never "
    "forget to tell how long the river is. "
)
QUESTION = (
    "Question {i}: which towns should somebody see who follows river number {i} from its source "
    "to the sea, and how many days would that take on foot, by boat and by train?"
)


class Result(NamedTuple):
    answers: list[list[int]]
    recording: float | None = None
    """Seconds that recording took: in the engine's thread and in the writer's."""
    seconds: float = 0.0
    processor: float = 0.0
    """Processor seconds of all threads."""


class NoSink:
    """Takes no notice: what the engine costs without recording."""

    def emit(self, event: Event, step: int) -> None:
        pass


def prompts(model: LoadedModel) -> list[list[int]]:
    shared = model.encode(PREAMBLE)[:SHARED]
    return [
        shared + model.encode(QUESTION.format(i=i), chat=False)[: 18 + i] for i in range(REQUESTS)
    ]


def ours(model: LoadedModel, tokens: list[list[int]], arrival: Callable[[int], int]) -> Result:
    return _run(model, tokens, arrival, NoSink())


def ours_recorded(
    model: LoadedModel, tokens: list[list[int]], arrival: Callable[[int], int]
) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        with TraceWriter(Path(folder) / "run.kvtrace") as writer:
            result = _run(model, tokens, arrival, writer)
        if writer.failure is not None:
            raise writer.failure
        return Result(result.answers, writer.emit_s + writer.busy_s)


def _run(model: LoadedModel, tokens: list[list[int]], arrival: Any, sink: Any) -> Result:
    asked = [
        Prompt(
            request=f"r{i}",
            prompt_tokens=tuple(prompt),
            max_new_tokens=NEW_TOKENS,
            arrival_step=arrival(i),
            ignore_eos=True,
        )
        for i, prompt in enumerate(tokens)
    ]
    engine = make_engine(model, CONFIG, asked, sink)
    engine.run()
    return Result([r.tokens[-NEW_TOKENS:] for r in engine.requests.values()])


def generate(model: Any, tokens: list[list[int]]) -> Result:
    """`model.generate` over one batch, padded on the left."""
    longest = max(map(len, tokens))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in tokens])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in tokens])
    out = model.generate(ids, attention_mask=mask, generation_config=_greedy())
    return Result(out[:, longest:].tolist())


def generate_batch(
    model: Any, tokens: list[list[int]], sizes: ContinuousBatchingConfig | None = None
) -> Result:
    """`model.generate_batch`: transformers' continuous batching over its own paged cache."""
    out = model.generate_batch(
        inputs=tokens, generation_config=_greedy(), continuous_batching_config=sizes
    )
    answers = {tuple(o.prompt_ids): list(o.generated_tokens) for o in out.values()}
    return Result([answers[tuple(prompt)] for prompt in tokens])


class VLLM:
    """vLLM in a process and an environment of its own. It clocks itself."""

    def __init__(self, python: str, model: Path, *, cached: bool) -> None:
        script = Path(__file__).with_name("vllm_answers.py")
        self._process = subprocess.Popen(
            [python, str(script), str(model), "cache" if cached else "no-cache"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> VLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def answer(self, tokens: list[list[int]]) -> Result:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process was started with pipes")
        print(
            json.dumps({"prompts": tokens, "new_tokens": NEW_TOKENS}),
            file=self._process.stdin,
            flush=True,
        )
        reply = self._process.stdout.readline()
        if not reply:
            raise SystemExit("vLLM ended; start benchmarks/vllm_answers.py by hand to see why.")
        return Result(**json.loads(reply))


def _greedy() -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, use_cache=True
    )


def together(_: int) -> int:
    return 1


def after_the_first(i: int) -> int:
    """So that the prefix is there to be shared when the others come."""
    return 1 if i == 0 else 2


def measure(contenders: dict[str, Callable[[], Result]], repeats: int) -> dict[str, Result]:
    best: dict[str, Result] = {}
    for _ in range(repeats):
        for name, contender in contenders.items():
            started, processor = time.perf_counter(), time.process_time()
            result = contender()
            if not result.seconds:
                result = result._replace(
                    seconds=time.perf_counter() - started,
                    processor=time.process_time() - processor,
                )
            if name not in best or result.seconds < best[name].seconds:
                best[name] = result
    return best


def table(results: dict[str, Result]) -> Table:
    """`x` columns compare with `generate_batch` as it comes."""
    total = REQUESTS * NEW_TOKENS
    base = results[BASE]
    expected = results["transformers generate, left padding"].answers
    shown = Table(box=None)
    shown.add_column("", no_wrap=True)
    for column in ("tokens/s", "x", "tokens/cpu s", "x", "recording", "as generate"):
        shown.add_column(column, justify="right")
    for name, result in results.items():
        equal = sum(a == b for a, b in zip(result.answers, expected, strict=True))
        shown.add_row(
            name,
            f"{total / result.seconds:.1f}",
            f"{base.seconds / result.seconds:.2f}",
            f"{total / result.processor:.1f}",
            f"{base.processor / result.processor:.2f}",
            "" if result.recording is None else f"{result.recording / result.seconds:.1%}",
            f"{equal}/{REQUESTS}",
        )
    return shown


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once")
    parser.add_argument("--vllm", metavar="PYTHON", help="also measure vLLM, by this interpreter")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    if options.threads:
        torch.set_num_threads(options.threads)
    loaded = load_model("smollm2", CONFIG)
    transformers.utils.logging.disable_progress_bar()
    plain = AutoModelForCausalLM.from_pretrained(loaded.directory, dtype=torch.float32).eval()
    plain.generation_config.eos_token_id = None  # everybody generates to the end
    asked = prompts(loaded)
    contenders = {
        "kvrewind, recording off": lambda: ours(loaded, asked, together),
        "kvrewind, recording on": lambda: ours_recorded(loaded, asked, together),
        "kvrewind, recording on, prefix shared": lambda: ours_recorded(
            loaded, asked, after_the_first
        ),
        "transformers generate, left padding": lambda: generate(plain, asked),
        BASE: lambda: generate_batch(plain, asked),
        "transformers generate_batch, sized as ours": lambda: generate_batch(
            plain, asked, SIZED_AS_OURS
        ),
    }
    started = machine()
    with ExitStack() as closing:
        if options.vllm:
            for name, cached in (("vLLM", False), ("vLLM, prefix cache", True)):
                vllm = closing.enter_context(VLLM(options.vllm, loaded.directory, cached=cached))
                vllm.answer(asked[:1])  # until it has loaded
                contenders[name] = partial(vllm.answer, asked)
        results = measure(contenders, 1 if options.quick else options.repeats)
    console = Console(width=110)
    console.print(
        f"SmolLM2-135M, CPU, float32, {REQUESTS} requests of {min(map(len, asked))} to "
        f"{max(map(len, asked))} tokens ({SHARED} shared), {NEW_TOKENS} new each; "
        f"best of {1 if options.quick else options.repeats}\n{started}"
    )
    console.print(table(results))


if __name__ == "__main__":
    main()
