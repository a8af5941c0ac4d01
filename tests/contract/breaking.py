"""Twins: a sound engine's trace with one thing wrong."""

from __future__ import annotations

from typing import Any

from sound import Line, Sound


def lines(trace: Sound, kind: str, **fields: Any) -> list[Line]:
    """The events of this kind with these fields, in order; at least one."""
    found = [
        line
        for line in trace.lines
        if line["kind"] == kind and all(line.get(n) == v for n, v in fields.items())
    ]
    assert found, f"there is no {kind} with {fields}"
    return found


def renumbered(trace: Sound) -> Sound:
    for seq, line in enumerate(trace.lines):
        line["seq"] = seq
    return trace


def remove(trace: Sound, *gone: Line) -> None:
    trace.lines = [line for line in trace.lines if not any(line is g for g in gone)]


def insert(trace: Sound, line: Line, before: Line) -> None:
    """Another event, of which the engine's own state knows nothing."""
    at = next(i for i, other in enumerate(trace.lines) if other is before)
    trace.lines.insert(at, line)
    trace.snapshots = [(count + (count > at), parts) for count, parts in trace.snapshots]
    renumbered(trace)


def move(trace: Sound, line: Line, before: Line) -> None:
    remove(trace, line)
    at = next(i for i, other in enumerate(trace.lines) if other is before)
    trace.lines.insert(at, line)
