"""Kills a recorder with SIGKILL at random moments, and looks at what it leaves.

    python scripts/kill_recorder.py --times 100

Each time a process runs the simulator and records it, every third time into a ring; it is killed
in between. What it leaves must open, hold the events of the run up to the end of a step and
nothing else, have a chain of digests that agrees, and be called incomplete. Exit status 1 where
it doesn't.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.digest import by_step
from kvrewind.recorder.events import Envelope, Event, SpanDropped
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.ring import Ring
from kvrewind.recorder.ring_limit import RingLimit
from kvrewind.recorder.sink import Sink
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.check import check
from kvrewind.replay.ring_state import RingState

NO_END = "no end record: the run was not recorded to its end"


def prompts(count: int) -> list[Prompt]:
    rng = Random(7)
    prefix = tuple(rng.randint(3, 90) for _ in range(48))
    return [
        Prompt(
            request=f"r{number}",
            prompt_tokens=(*prefix[: rng.randint(0, 48)], *(rng.randint(3, 90) for _ in range(9))),
            max_new_tokens=rng.randint(8, 40),
            arrival_step=1 + 3 * number,
            ignore_eos=True,
        )
        for number in range(count)
    ]


def run_into(sink: Sink, requests: int) -> None:
    config = EngineConfig(num_blocks=64, max_num_seqs=8)
    make_engine(SymbolicModel(), config, prompts(requests), sink).run()


def record(path: Path, ring: str | None, requests: int) -> None:
    kept = None if ring is None else Ring(RingLimit.parse(ring), RingState())
    with TraceWriter(path, ring=kept) as writer:
        run_into(writer, requests)


def killed_after(seconds: float, path: Path, ring: str | None, requests: int) -> bool:
    """False if it came to its end before that."""
    child = os.fork()
    if child == 0:
        record(path, ring, requests)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def is_complete(path: Path) -> bool:
    """Whether the kill came between the end of the trace and the end of the process."""
    if not path.exists():
        return False
    with TraceReader(path) as trace:
        return trace.complete


def what_is_wrong(path: Path, whole: Sequence[Envelope], ends: set[int]) -> str | None:
    """`whole` is the run as it is without a kill, and `ends` are the last events of its steps."""
    with TraceReader(path) as trace:
        found = list(trace.envelopes())
        problems = list(trace.problems)
    report = check(found, problems)
    if problems != [NO_END]:
        return f"its problems are {problems}"
    if report.verdict != "incomplete" or report.findings:
        return f"the verdict is {report.verdict}"
    if found and found[-1].seq not in ends:
        return f"it ends in the middle of a step, at {found[-1].position}"
    for envelope in found[1:]:
        of_run = whole[envelope.seq]
        if not isinstance(envelope.event, SpanDropped) and _told(envelope) != _told(of_run):
            return f"event {envelope.position} is another one than in the run"
    marks = [e for e in found if isinstance(e.event, SpanDropped)]
    gaps = [b.seq for a, b in pairwise(found) if b.seq != a.seq + 1]
    if any(seq > marks[0].seq for seq in gaps) if marks else gaps:
        return f"events before {gaps[-1]} are missing"
    return None


def _told(envelope: Envelope) -> tuple[int, Event]:
    return envelope.step, envelope.event


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=120, help="how many there are to serve")
    options = parser.parse_args()
    sink = MemorySink()
    run_into(sink, options.requests)
    ends = {group[-1].seq for _, group in by_step(sink.envelopes)}
    rng, outcomes = Random(options.seed), Counter[str]()
    kept: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        record(Path(folder) / "whole.kvtrace", None, options.requests)
        longest = time.perf_counter() - started
        attempt = 0
        while outcomes["killed"] < options.times:
            attempt += 1
            path = Path(folder) / f"{attempt}.kvtrace"
            ring = "40steps" if attempt % 3 == 0 else None
            if not killed_after(rng.uniform(0, longest), path, ring, options.requests):
                outcomes["came to its end first"] += 1
                continue
            if is_complete(path):
                outcomes["had written its end"] += 1
                continue
            outcomes["killed"] += 1
            if not path.exists():
                outcomes["before there was a file"] += 1
                continue
            wrong = what_is_wrong(path, sink.envelopes, ends)
            if wrong is not None:
                outcomes["wrong"] += 1
                print(f"kill {attempt}: {wrong}", file=sys.stderr)
                continue
            with TraceReader(path) as trace:
                kept.append(trace.count)
                outcomes["rings"] += ring is not None
            outcomes["sound up to a step"] += 1
    print(", ".join(f"{count} {what}" for what, count in outcomes.items()))
    print(f"the run has {len(sink.envelopes)} events; kept were {min(kept)} to {max(kept)}")
    return 1 if outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
