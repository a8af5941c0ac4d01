"""Do two recordings of one workload say the same? python scripts/same_tokens.py A.kvtrace B.kvtrace

Exit status 0 if every request was given the same tokens, 1 if not; then the margins tell a near
tie, which another device's rounding may turn over, from a fault.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from kvrewind.recorder.events import TokensSampled
from kvrewind.recorder.reader import TraceReader


class Said(NamedTuple):
    token: int
    margin: float | None  # between the best and the second best logit


def main() -> int:
    first, second = (said_in(Path(name)) for name in sys.argv[1:3])
    differing = 0
    for request in sorted(first.keys() | second.keys()):
        a, b = first[request], second[request]
        if [said.token for said in a] == [said.token for said in b]:
            continue
        differing += 1
        shorter = min(len(a), len(b))
        at = next((i for i in range(shorter) if a[i].token != b[i].token), shorter)
        margins = [said[at].margin if at < len(said) else None for said in (a, b)]
        print(f"{request}: differs from answer token {at} on, margins {margins}")
    total = sum(map(len, first.values()))
    print(f"{len(first)} requests, {total} tokens, {differing} requests differ")
    return 1 if differing or not total else 0


def said_in(path: Path) -> defaultdict[str, list[Said]]:
    """By request, in the order of their positions."""
    said: defaultdict[str, list[Said]] = defaultdict(list)
    with TraceReader(path) as trace:
        for envelope in trace.envelopes():
            event = envelope.event
            if isinstance(event, TokensSampled):
                margins = event.margins or [None] * len(event.tokens)
                for request, token, margin in zip(
                    event.requests, event.tokens, margins, strict=True
                ):
                    said[request].append(Said(token, margin))
    return said


if __name__ == "__main__":
    sys.exit(main())
