"""Keys and values of a real pool go to host memory and come back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import make_engine, open_model
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.events import BlockDigested, TransferStarted
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check


@pytest.fixture(scope="module")
def canary():
    return open_model("canary", EngineConfig())


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_answers_from_loaded_blocks_are_the_computed_ones(
    canary, kv_dtype: str, steps_in_flight: int
) -> None:
    workload = default_workload(1)
    switches = dict(workload.switches) | {
        "num_blocks": 10, "max_num_seqs": 2, "kv_dtype": kv_dtype, "scrub": "nan",
        "steps_in_flight": steps_in_flight,
    }  # fmt: skip
    prompts = [spec.tokenized(canary.encode, 8) for spec in workload.specs[:4]]
    prompts = [replace(p, max_new_tokens=8, tenant=p.request) for p in prompts]
    prompts += [replace(p, request=f"{p.request} again", arrival_step=60) for p in prompts]
    said: list[dict[str, list[int]]] = []
    for host_blocks in (0, 40):
        sink = MemorySink()
        config = EngineConfig(**switches, host_blocks=host_blocks)
        engine = make_engine(canary, config, prompts, sink)
        engine.run(max_steps=2000)
        said.append({name: request.tokens for name, request in engine.requests.items()})
        assert check(sink.envelopes).verdict == "clean"
    assert said[0] == said[1]
    events = [envelope.event for envelope in sink.envelopes]
    loads = [e for e in events if isinstance(e, TransferStarted) and e.direction == "load"]
    assert len(loads) >= 2
    digests = [e for e in events if isinstance(e, BlockDigested)]
    assert len({e.digest for e in digests if e.at == "store"}) > 5
    assert {e.digest for e in digests if e.at == "load"} <= {
        e.digest for e in digests if e.at == "store"
    }
