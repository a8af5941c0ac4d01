"""The same engine from the recorded inputs, under the same or other switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from ..engine.config import EngineConfig
from ..engine.decisions import Policy
from ..engine.engine import DidNotFinish
from ..engine.header import run_header
from ..engine.llm import Model, make_engine
from ..engine.runner import ModelCard, Runner
from ..recorder.encoder import encode
from ..recorder.events import Envelope, RunStarted
from ..recorder.memory import MemorySink
from ..recorder.redaction import is_redacted
from .forced import Forced
from .recording import NotReexecutable, Recording
from .retold import Wordless, labelled, model_of, numbered

PATIENCE = 4
"""A re-execution ends after this many times the recorded steps: faulty runs can livelock.

Or, where that is more, this many times the recorded tokens: one request at a time needs a step
for each, however few steps the batch took.
"""


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a re-execution gave."""

    envelopes: list[Envelope]
    finished: bool


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two streams of events differ; None where one has ended."""

    recorded: Envelope | None
    replayed: Envelope | None


class Reexecutor:
    """Runs a recording again, as often as asked; the model is loaded once.

    Raises `NotReexecutable` when the model at hand isn't the recorded one.
    """

    def __init__(self, recording: Recording, model: Model | None = None) -> None:
        self.recording = recording
        self._model = model or model_of(recording)

    def run(
        self,
        switches: Mapping[str, object] | None = None,
        *,
        policy: Policy | None = None,
        only: str | None = None,
        force_tokens: bool = False,
    ) -> Rerun:
        """Without switches the stream of events is the recorded one, step by step.

        `switches` replaces fields of the recorded configuration; `only` runs one request alone.
        """
        recording = self.recording if only is None else self.recording.alone(only)
        config = replace(self.recording.config, **(switches or {}))
        sink = MemorySink()
        runner = self._model.runner(config)
        self._refuse_other_model(runner.card)
        engine = make_engine(
            self._model,
            config,
            recording.prompts,
            Wordless(sink) if is_redacted(self.recording.header) else sink,
            runner=Forced(runner, self.recording.sampled) if force_tokens else runner,
            policy=policy,
            header=self._header(config, runner),
            define_pieces=self.recording.has_pieces,
        )
        for abort in recording.aborts:
            engine.abort(abort.request, abort.step)
        for change in recording.epochs:
            engine.change_epoch(change)
        try:
            engine.run(max_steps=self._step_limit())
        except DidNotFinish:
            return Rerun(sink.envelopes, finished=False)
        return Rerun(sink.envelopes, finished=True)

    def other_versions(self) -> list[str]:
        """What differs between the machine of the recording and this one: numerics may drift."""
        recorded = self.recording.header.versions
        here = self._model.runner(self.recording.config).card.versions
        return [
            f"{name} {recorded[name]} (here {here[name]})"
            for name in sorted(recorded.keys() & here.keys())
            if recorded[name] != here[name]
        ]

    def _step_limit(self) -> int:
        sampled = sum(len(tokens) for tokens in self.recording.sampled.values())
        return PATIENCE * max(self.recording.steps, sampled, 1)

    def _header(self, config: EngineConfig, runner: Runner) -> RunStarted:
        """The recorded header under the recorded switches: time and place of the run stay."""
        if config == self.recording.config:
            return self.recording.header
        return labelled(run_header(config, runner), self.recording.header)

    def _refuse_other_model(self, card: ModelCard) -> None:
        recorded = self.recording.header
        if recorded.model_digest is not None and recorded.model_digest != card.digest:
            raise NotReexecutable(
                f"the trace was recorded with another {recorded.model} than the one found here "
                "(their weights differ); give the recorded one with --model."
            )


def first_divergence(
    recorded: Sequence[Envelope], replayed: Sequence[Envelope], *, bits: bool = False
) -> Divergence | None:
    """The first pair of events whose encoded bytes differ; None when the streams are equal.

    Floats count only with `bits`. Times and ranks never do, nor what a key is called where the
    recorded run was redacted.
    """
    ours, theirs = recorded, replayed
    if recorded and isinstance(first := recorded[0].event, RunStarted) and is_redacted(first):
        ours, theirs = numbered(recorded), numbered(replayed)
    for i, (a, b) in enumerate(zip_longest(ours, theirs)):
        if a is None or b is None or a.step != b.step or _bytes(a, bits) != _bytes(b, bits):
            return Divergence(_at(recorded, i), _at(replayed, i))
    return None


def _at(envelopes: Sequence[Envelope], index: int) -> Envelope | None:
    return envelopes[index] if index < len(envelopes) else None


def _bytes(envelope: Envelope, bits: bool) -> object:
    encoded = encode(envelope.event)
    content = encoded.payload if bits else encoded.exact
    return envelope.kind, encoded.request, encoded.block, content
