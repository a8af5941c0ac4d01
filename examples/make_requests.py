"""Makes examples/requests.jsonl: half a minute of a chat service, as a Mooncake request trace.

    python examples/make_requests.py > examples/requests.jsonl

Conversations begin with one of two system prompts; each turn's prompt is all that was said before
and a new question. A hash id stands for 512 tokens of text after all the text before them, so a
block that was cut short by the end of a prompt gets another id once it is filled. A tenth of the
conversations are of a tenant who pays for going first. All numbers are made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

BLOCK = 512
CONVERSATIONS = 20
SECONDS = 12
SYSTEM_PROMPTS = ((0, 900), (1, 1700))
"""(number, tokens)."""


class HashIds:
    """One number for each text that a block holds, counted as they first occur."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], int] = {}

    def of(self, pieces: list[tuple[str, int]]) -> list[int]:
        """`pieces`: (text, tokens) one behind the other; equal texts have equal names."""
        ends: list[tuple[str, int]] = []
        tokens = 0
        for text, length in pieces:
            tokens += length
            ends.append((text, tokens))
        ids = []
        for start in range(0, tokens, BLOCK):
            end = min(start + BLOCK, tokens)
            until = next(i for i, (_, stop) in enumerate(ends) if stop >= end)
            content = (*(text for text, _ in ends[: until + 1]), end)
            ids.append(self._ids.setdefault(content, len(self._ids)))
        return ids


def requests(seed: int = 0) -> list[dict[str, Any]]:
    """Sorted by time."""
    rng, hash_ids = Random(seed), HashIds()
    turns = [turn for number in range(CONVERSATIONS) for turn in _conversation(rng, number)]
    turns.sort(key=lambda turn: turn["timestamp"])
    for turn in turns:
        turn["hash_ids"] = hash_ids.of(turn.pop("pieces"))
    first = turns[0]["timestamp"]
    return [turn | {"timestamp": turn["timestamp"] - first} for turn in turns]


def _conversation(rng: Random, number: int) -> Iterator[dict[str, Any]]:
    system, length = rng.choice(SYSTEM_PROMPTS)
    pieces = [(f"system {system}", length)]
    pays = rng.random() < 0.1
    time = rng.uniform(0, SECONDS * 1000)
    for turn in range(rng.choice((1, 1, 2, 3, 4))):
        question = min(round(rng.lognormvariate(4.5, 1)) + 8, 2000)
        answer = min(round(rng.lognormvariate(4.2, 0.6)) + 8, 400)
        pieces.append((f"question {number}.{turn}", question))
        yield {
            "timestamp": round(time),
            "input_length": sum(tokens for _, tokens in pieces),
            "output_length": answer,
            "pieces": list(pieces),
            "tenant": "gold" if pays else "free",
            **({"priority": -1} if pays else {}),
        }
        pieces.append((f"answer {number}.{turn}", answer))
        time += rng.uniform(2000, 8000)


if __name__ == "__main__":
    for request in requests():
        print(json.dumps(request))
