"""A step raises on the device. Its requests fail with the reason; everybody else goes on.

python examples/failing_step.py [FILE.kvtrace]
"""

from __future__ import annotations

import sys

from kvrewind.engine.canary.wordpiece import WordPiece
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.engine.runner import StepOutput
from kvrewind.engine.symbolic import SymbolicRunner
from kvrewind.recorder.writer import TraceWriter


class FailsOnce(SymbolicRunner):
    """The simulator, on a device that has no memory left in step 3."""

    def execute(self, inputs: StepInputs) -> StepOutput:
        if inputs.step == 3:
            raise MemoryError("the device has no memory left")
        return super().execute(inputs)


def main(path: str) -> None:
    model, config = SymbolicModel(), EngineConfig(block_size=4, num_blocks=16)
    tokens = tuple(model.encode("the sea is calm today ."))
    prompts = [
        Prompt(request=name, prompt_tokens=tokens, max_new_tokens=4, arrival_step=step)
        for name, step in (("early", 1), ("unlucky", 3), ("late", 4))
    ]
    with TraceWriter(path) as trace:
        runner = FailsOnce(config, WordPiece.load())
        engine = make_engine(model, config, prompts, trace, runner=runner)
        engine.run()
    for request in engine.requests.values():
        why = f": {request.error}" if request.error else f", {request.num_sampled} tokens"
        print(f"{request.name} ({request.finish_reason}){why}")
    print(f"free blocks: {engine.pools[0].num_free} of {config.num_blocks}")
    print(f"next: kvrewind check {path}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["failing_step.kvtrace"])
