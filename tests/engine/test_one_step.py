"""tests/data/one_step.jsonl: one step in full, as the engine emits it.

Step 1 computes request a; step 2, the one to read, decodes a and takes in b, which shares a's
first block. `python tests/engine/test_one_step.py` writes the file anew.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.header import run_header
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.jsonl import read_jsonl, write_jsonl
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check

FILE = Path(__file__).parents[1] / "data" / "one_step.jsonl"


def one_step() -> str:
    """The events as JSON lines; what differs from machine to machine is fixed."""
    model, sink = SymbolicModel(), MemorySink()
    config = EngineConfig(block_size=4, num_blocks=8)
    text = "the sea is calm and the wind is warm"
    tokens = tuple(model.encode(text))
    prompts = [
        Prompt(request="a", prompt_tokens=tokens[:6], max_new_tokens=2),
        Prompt(request="b", prompt_tokens=tokens[:7], max_new_tokens=1, arrival_step=2),
    ]
    header = replace(
        run_header(config, model.runner(config)),
        wall_clock="2026-01-01T00:00:00.000+00:00",
        versions={"python": "3.11"},
    )
    make_engine(model, config, prompts, sink, header=header).run()
    lines = io.StringIO()
    write_jsonl((e._replace(t_ns=0) for e in sink.envelopes), lines)
    return lines.getvalue()


def test_the_committed_step_is_what_the_engine_emits() -> None:
    assert FILE.read_text(encoding="utf-8") == one_step()


def test_the_step_shows_every_kind_of_its_order_and_is_clean() -> None:
    with FILE.open(encoding="utf-8") as stream:
        envelopes = list(read_jsonl(stream, str(FILE)))
    kinds = [e.kind for e in envelopes if e.step == 2]
    order = [
        "RequestAdded", "PrefixLookedUp", "BlockShared", "BlockAllocated", "StepScheduled",
        "InputsBuilt", "MaskBuilt", "StepDispatched", "SlotsWritten", "StepCompleted",
        "TokensSampled", "RequestFinished", "BlockReleased", "BlockFreed",
    ]  # fmt: skip
    firsts = [kinds.index(kind) for kind in order]
    assert firsts == sorted(firsts)
    assert check(envelopes).verdict == "clean"
    assert json.loads(FILE.read_text().splitlines()[0])["kind"] == "RunStarted"


if __name__ == "__main__":
    FILE.write_text(one_step(), encoding="utf-8")
