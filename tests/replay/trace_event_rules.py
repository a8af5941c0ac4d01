"""What the Trace Event Format asks of a file, as assertions."""

from __future__ import annotations

import json
from typing import Any

Records = list[dict[str, Any]]
FIELDS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "cat", "ph", "ts", "pid", "tid", "s", "args"},
    "C": {"name", "cat", "ph", "ts", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "b": {"name", "cat", "ph", "ts", "pid", "tid", "id", "args"},
    "e": {"name", "cat", "ph", "ts", "pid", "tid", "id", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
}
METADATA = {
    "process_name": {"name": str},
    "thread_name": {"name": str},
    "process_sort_index": {"sort_index": int},
    "thread_sort_index": {"sort_index": int},
}


def obeying(text: str) -> Records:
    """The events of a file that obeys the format."""
    whole = json.loads(text, parse_constant=lambda name: 1 / 0)
    assert set(whole) == {"displayTimeUnit", "traceEvents", "otherData"}
    assert whole["displayTimeUnit"] in ("ms", "ns")
    records = whole["traceEvents"]
    for record in records:
        _fields(record)
    _nesting(records)
    _names(records)
    _pairs(records, "b", "e")
    _pairs(records, "s", "f")
    _arrows(records)
    return records


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def of(records: Records, ph: str, **fields: Any) -> Records:
    return [
        r for r in records if r["ph"] == ph and all(r.get(k) == v for k, v in fields.items())
    ]  # fmt: skip


def track(record: dict[str, Any]) -> tuple[int, int]:
    return record["pid"], record["tid"]


def _fields(record: dict[str, Any]) -> None:
    ph = record["ph"]
    assert set(record) == FIELDS[ph], record
    assert type(record["name"]) is str
    assert type(record["pid"]) is type(record["tid"]) is int
    if ph == "M":
        for name, kind in METADATA[record["name"]].items():
            assert type(record["args"][name]) is kind
        return
    assert type(record["ts"]) in (int, float)
    assert record["ts"] >= 0
    assert ph != "X" or record["dur"] >= 0
    assert ph != "i" or record["s"] in ("g", "p", "t")
    assert ph != "f" or record["bp"] == "e"
    if ph == "C":
        assert record["args"]
        assert all(type(value) in (int, float) for value in record["args"].values())


def _nesting(records: Records) -> None:
    """Slices of one track lie inside one another, or beside."""
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for r in of(records, "X"):
        slices.setdefault(track(r), []).append((ns(r["ts"]), ns(r["ts"]) + ns(r["dur"])))
    for found in slices.values():
        stack: list[int] = []
        for start, end in sorted(found, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)


def _names(records: Records) -> None:
    """Each process and each track that has something on it has one name."""
    for what, drawn in (("process_name", "XibeC"), ("thread_name", "Xibe")):
        named = [
            track(r) if what == "thread_name" else r["pid"] for r in of(records, "M", name=what)
        ]
        assert len(named) == len(set(named))
        used = {
            track(r) if what == "thread_name" else r["pid"] for r in records if r["ph"] in drawn
        }
        assert used <= set(named)


def _pairs(records: Records, first: str, last: str) -> None:
    begun = {(r["cat"], r["id"]): r for r in of(records, first)}
    ended = {(r["cat"], r["id"]): r for r in of(records, last)}
    assert len(begun) == len(of(records, first))
    assert len(ended) == len(of(records, last))
    assert set(begun) == set(ended)
    for key, record in begun.items():
        assert record["ts"] <= ended[key]["ts"]
        assert record["name"] == ended[key]["name"]


def _arrows(records: Records) -> None:
    """Either end of an arrow is in a slice of its track."""
    for r in (*of(records, "s"), *of(records, "f")):
        around = [
            x
            for x in of(records, "X")
            if track(x) == track(r) and ns(x["ts"]) <= ns(r["ts"]) <= ns(x["ts"]) + ns(x["dur"])
        ]
        assert around, r
