"""Traces of the default workload on the symbolic runner.

`leak` is a fixed one (`data/leak.jsonl`, exported from `record --fault key-length-only`): what the
app shows of it changes only with the app.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.events import Envelope
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.sink import Sink
from kvrewind.recorder.writer import TraceWriter

LEAK = Path(__file__).parent / "data" / "leak.jsonl"

sys.path.insert(0, str(Path(__file__).parent))  # for `live`


def _record(sink: Sink, faults: tuple[str, ...]) -> None:
    workload, model = default_workload(), SymbolicModel()
    config = with_implied(EngineConfig(faults=faults, **workload.switches))
    prompts = [spec.tokenized(model.encode, 16) for spec in workload.specs]
    make_engine(model, config, prompts, sink).run(400)


@pytest.fixture(scope="session")
def trace_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`leak`, `clean` or a fault's name -> a trace file of that name, made once."""
    folder = tmp_path_factory.mktemp("traces")

    @cache
    def path_of(name: str) -> Path:
        path = folder / f"{name}.kvtrace"
        with TraceWriter(path) as sink:
            if name == "leak":
                for envelope in read_jsonl(LEAK):
                    sink.emit(envelope.event, envelope.step)
            else:
                _record(sink, () if name == "clean" else (name,))
        return path

    return path_of


@pytest.fixture
def opened(trace_of: Callable[..., Path]):
    """As `trace_of`, with a reader that is closed when the test ends."""
    readers: list[TraceReader] = []

    def reader_of(name: str) -> TraceReader:
        readers.append(TraceReader(trace_of(name)))
        return readers[-1]

    yield reader_of
    for reader in readers:
        reader.close()


@pytest.fixture(scope="session")
def leak() -> list[Envelope]:
    """The events of the fixed trace."""
    return list(read_jsonl(LEAK))
