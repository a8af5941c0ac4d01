"""Three customers ask at once, as tasks of one event loop; one of them hangs up.

    python examples/async_client.py [FILE.kvtrace]

Whoever stops listening aborts the request: its blocks are free in the next step.
"""

from __future__ import annotations

import asyncio
import sys

from kvrewind.engine.async_engine import AsyncEngine
from kvrewind.engine.canary.prompts import CanaryRequest, render
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import Model, make_engine, open_model
from kvrewind.engine.request import Prompt
from kvrewind.recorder.writer import TraceWriter

CUSTOMERS = {"alice": "bukose", "bob": "timalo", "carol": "nidepa"}
"""Each with a passphrase of its own."""


async def ask(engine: AsyncEngine, model: Model, name: str, patience: int) -> None:
    """Reads at most `patience` tokens."""
    text = render(CanaryRequest(CUSTOMERS[name], question="four-times"))
    prompt = Prompt(request=name, prompt_tokens=tuple(model.encode(text)), max_new_tokens=48)
    answer: list[int] = []
    async for token in engine.generate(prompt):
        answer.append(token)
        if len(answer) == patience:
            print(f"{name} hangs up: {model.decode(answer)} ...")
            return
    print(f"{name}: {model.decode(answer)}")


async def main(path: str) -> None:
    config = EngineConfig()
    model = open_model("canary", config)
    with TraceWriter(path) as trace:
        async with (
            AsyncEngine(make_engine(model, config, (), trace)) as engine,
            asyncio.TaskGroup() as tasks,
        ):
            for name in CUSTOMERS:
                patience = 10 if name == "carol" else 1000
                tasks.create_task(ask(engine, model, name, patience))
    print(f"next: kvrewind check {path}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["async_client.kvtrace"]))
