"""Three customers ask at once, each in a thread of its own, and read the tokens as they come.

    python examples/stream.py [FILE.kvtrace]

The run is recorded: `kvrewind check FILE.kvtrace` judges it, `kvrewind replay` runs it again.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from kvrewind.engine.canary.prompts import CanaryRequest, render
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.engine.request import Prompt
from kvrewind.engine.serving import ThreadedEngine
from kvrewind.recorder.writer import TraceWriter

CUSTOMERS = {"alice": "bukose", "bob": "timalo", "carol": "nidepa"}
"""Each with a passphrase of its own."""


def say(line: str) -> None:
    """In one piece, whoever else says something at the same time."""
    sys.stdout.write(f"{line}\n")


def main(path: str) -> None:
    config = EngineConfig()
    model = open_model("canary", config)
    with (
        TraceWriter(path) as trace,
        ThreadedEngine(make_engine(model, config, (), trace)) as engine,
        ThreadPoolExecutor() as threads,
    ):

        def ask(name: str) -> None:
            tokens = tuple(model.encode(render(CanaryRequest(CUSTOMERS[name]))))
            stream = engine.submit(Prompt(request=name, prompt_tokens=tokens, max_new_tokens=16))
            for token in stream:
                say(f"{name:>6}: {model.piece(token)}")
            say(f"{name:>6} ({stream.finish_reason}): {model.decode(stream.result())}")

        list(threads.map(ask, CUSTOMERS))  # a list, so that what one raises is raised here
    print(f"next: kvrewind check {path}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["stream.kvtrace"])
