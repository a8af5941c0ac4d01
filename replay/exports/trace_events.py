"""The Trace Event Format, as ui.perfetto.dev and chrome://tracing read it: one event a line.

Source: "Trace Event Format", Google, 2016 (JSON object format). Times are in microseconds. Slices
of one track must nest; whoever calls sees to that. Nothing is kept in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TextIO


class Track(NamedTuple):
    """A row of the picture: in the format's words, a thread of a process."""

    pid: int
    tid: int


class TraceEvents:
    """Write events in any order, then `close`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.count = 0
        stream.write('{"displayTimeUnit":"ms","traceEvents":[')

    def close(self, other: Mapping[str, Any]) -> None:
        """`other` is about the whole: names and numbers."""
        self._stream.write(f'\n],"otherData":{_json(other)}}}\n')

    def name_process(self, pid: int, name: str) -> None:
        self._write(ph="M", name="process_name", pid=pid, tid=0, args={"name": name})
        self._write(ph="M", name="process_sort_index", pid=pid, tid=0, args={"sort_index": pid})

    def name_track(self, track: Track, name: str) -> None:
        """Tracks of a process are shown in the order of their numbers."""
        order = {"sort_index": track.tid}
        self._write(ph="M", name="thread_name", **track._asdict(), args={"name": name})
        self._write(ph="M", name="thread_sort_index", **track._asdict(), args=order)

    def slice(
        self, track: Track, category: str, name: str, start: float, end: float, args: Any
    ) -> None:
        """Something that lasted from `start` to `end`."""
        self._write(
            ph="X", cat=category, name=name, **track._asdict(), ts=start,
            dur=round(end - start, 3), args=args,
        )  # fmt: skip

    def instant(self, track: Track, category: str, name: str, ts: float, args: Any) -> None:
        self._write(ph="i", s="t", cat=category, name=name, **track._asdict(), ts=ts, args=args)

    def counter(self, pid: int, name: str, ts: float, values: Mapping[str, float]) -> None:
        """Numbers that are stacked on each other."""
        self._write(ph="C", cat="count", name=name, pid=pid, tid=0, ts=ts, args=values)

    def arrow_from(self, track: Track, name: str, number: int, ts: float) -> None:
        """An arrow out of the slice that `track` has at `ts`; its end has the same number."""
        self._write(ph="s", cat="finding", name=name, id=number, **track._asdict(), ts=ts)

    def arrow_to(self, track: Track, name: str, number: int, ts: float) -> None:
        self._write(ph="f", bp="e", cat="finding", name=name, id=number, **track._asdict(), ts=ts)

    def begin(self, track: Track, category: str, name: str, of: str, ts: float, args: Any) -> None:
        """Something that may overlap others of its track; `of` tells it from them."""
        self._write(
            ph="b", cat=category, name=name, id=of, **track._asdict(), ts=ts, args=args
        )  # fmt: skip

    def end(self, track: Track, category: str, name: str, of: str, ts: float, args: Any) -> None:
        self._write(
            ph="e", cat=category, name=name, id=of, **track._asdict(), ts=ts, args=args
        )  # fmt: skip

    def _write(self, **record: Any) -> None:
        self._stream.write(",\n" if self.count else "\n")
        self._stream.write(_json(record))
        self.count += 1


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
