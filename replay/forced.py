"""A runner that is told what to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..engine.inputs import StepInputs
from ..engine.request import Request
from ..engine.runner import BlockMemory, ModelCard, Runner, StepOutput
from ..engine.sampling import Sample


class Forced:
    """A runner that computes as its inner one does, and says the recorded tokens."""

    def __init__(self, inner: Runner, sampled: Mapping[str, Sequence[int]]) -> None:
        self._inner = inner
        self._sampled = sampled
        self._requests: dict[str, Request] = {}

    @property
    def card(self) -> ModelCard:
        return self._inner.card

    @property
    def memory(self) -> BlockMemory:
        return self._inner.memory

    def begin(self, request: Request) -> None:
        self._requests[request.name] = request
        self._inner.begin(request)

    def execute(self, inputs: StepInputs) -> StepOutput:
        output = self._inner.execute(inputs)
        forced = tuple(
            self._recorded(sample, token)
            for sample, token in zip(inputs.samples, output.tokens, strict=True)
        )
        return replace(output, tokens=forced)

    def _recorded(self, sample: Sample, token: int) -> int:
        """The token that took this index of its request; the model's own behind the last one."""
        recorded = self._sampled.get(sample.request, ())
        said = sample.index - len(self._requests[sample.request].prompt.prompt_tokens)
        return recorded[said] if said < len(recorded) else token
