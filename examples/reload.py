"""Three customers ask the same thing; while the second is answered, the weights are loaded anew.

    python examples/reload.py [FILE.kvtrace]

What was computed with the old weights is void: the second request, which shared the first one's
blocks, computes its tokens again, and the third shares only what was computed anew.
"""

from __future__ import annotations

import sys

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.tui.presenters.listing import listed

SHOWN = ("PrefixLookedUp", "EpochChanged", "BlockUnregistered", "RequestPreempted")


def main(path: str) -> None:
    model = SymbolicModel()
    question = tuple(model.encode("the sea is calm today . the wind is cold ."))
    prompts = [
        Prompt(request=name, prompt_tokens=question, max_new_tokens=new, arrival_step=step)
        for name, new, step in (("first", 2, 1), ("second", 6, 3), ("third", 2, 7))
    ]
    with TraceWriter(path) as trace:
        engine = make_engine(model, EngineConfig(block_size=4, num_blocks=16), prompts, trace)
        engine.change_epoch(EpochChange("weights", epoch="v2", step=5))
        engine.run()
    with TraceReader(path) as reader:
        for row in listed(reader, SHOWN):
            print(f"{row.position:6} {row.what}")
    print(f"next: kvrewind check {path}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["reload.kvtrace"])
