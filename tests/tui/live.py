"""A writer in a process of its own, which goes on when it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LEAK = Path(__file__).parent / "data" / "leak.jsonl"

SCRIPT = """
import sys, time
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.recorder.writer import TraceWriter
envelopes = list(read_jsonl(sys.argv[2]))
writer = TraceWriter(sys.argv[1])
print("ready", flush=True)
written = 0
for line in sys.stdin:
    until = int(line)
    steps = {e.step for e in envelopes if e.step <= until}
    # the first event of the next step closes the last one
    behind = next((i + 1 for i, e in enumerate(envelopes) if e.step > until), len(envelopes))
    writer.write_envelopes(envelopes[written:behind])
    written = max(written, behind)
    if written == len(envelopes):
        writer.close()
    while writer.steps < len(steps):
        time.sleep(0.001)
    print(writer.steps, flush=True)
"""


class LiveWriter:
    """Writes the steps of a JSON lines file into the trace `path`, without overlapping steps."""

    def __init__(self, path: Path, lines: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path), str(lines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def until(self, step: int) -> None:
        """Steps up to this one are in the file when it returns; the last step ends the run."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        self._answer()

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the writer failed"
