"""Runs of the default workload on the simulator, recorded in memory: a few milliseconds each."""

from __future__ import annotations

from functools import cache

from kvrewind.engine.canary.wordpiece import WordPiece
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.faults.registry import policy_of, with_implied
from kvrewind.engine.symbolic import SymbolicRunner
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.memory import MemorySink


@cache
def recorded(*faults: str) -> tuple[Envelope, ...]:
    """The events of one run with these faults planted."""
    workload, tokenizer, sink = default_workload(), WordPiece.load(), MemorySink()
    config = with_implied(EngineConfig(faults=faults, **workload.switches))
    engine = Engine(
        config,
        SymbolicRunner(config, tokenizer),
        sink,
        policy=policy_of(config),
        pieces=lambda token: tokenizer.piece(token),
    )
    engine.add([spec.tokenized(tokenizer.encode, 16) for spec in workload.specs])
    engine.run(400)
    return tuple(sink.envelopes)
