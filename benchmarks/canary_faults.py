"""What each planted fault does to the canary's answers and to the trace, as a Markdown table.

    python benchmarks/canary_faults.py --seeds 10

Each run is the default workload with passphrases of another seed. *Contaminated*: runs that the
log convicts. *Echo*: requests that name a passphrase that they can't know. *Altered*: requests
that answer otherwise than in the clean run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import FAULTS, with_implied
from kvrewind.engine.llm import Model, make_engine, open_model
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.oracles import foreign_passphrases


def answers(model: Model, seed: int, faults: Sequence[str]) -> tuple[dict[str, str], str]:
    """The answers of one run, and its verdict."""
    workload, sink = default_workload(seed), MemorySink()
    config = with_implied(EngineConfig(**workload.switches, faults=tuple(faults)))
    prompts = [spec.tokenized(model.encode, 32) for spec in workload.specs]
    engine = make_engine(model, config, prompts, sink)
    engine.run(max_steps=500)
    said = {n: model.decode(r.tokens[-r.num_sampled :]) for n, r in engine.requests.items()}
    return said, check(sink.envelopes).verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--model", default="canary")
    arguments = parser.parse_args()
    model = open_model(arguments.model, EngineConfig())
    print("| fault | contaminated runs | echo | altered |")
    print("|---|---|---|---|")
    for fault in (None, *(fault.name for fault in FAULTS)):
        contaminated = echoes = altered = requests = 0
        for seed in range(arguments.seeds):
            specs = default_workload(seed).specs
            words = {spec.request: spec.passphrase for spec in specs}
            clean, _ = answers(model, seed, ())
            said, verdict = answers(model, seed, (fault,) if fault else ())
            contaminated += verdict == "contaminated"
            echoes += sum(bool(foreign_passphrases(n, text, words)) for n, text in said.items())
            altered += sum(said[name] != clean[name] for name in said)
            requests += len(said)
        name = f"`{fault}`" if fault else "none"
        print(
            f"| {name} | {contaminated}/{arguments.seeds} | {echoes}/{requests} "
            f"| {altered}/{requests} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
