"""Requests as tracks: what each was doing, from its arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...recorder.events import (
    AbortRequested,
    Envelope,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    SpanDropped,
    StepScheduled,
    TokensSampled,
)
from .trace_events import TraceEvents, Track

CATEGORY = "request"

Key = tuple[int, str]
"""Rank and name."""


@dataclass(slots=True)
class _Life:
    """A request that is alive, and the slice that it is in."""

    phase: str
    since: float
    args: dict[str, Any] = field(default_factory=dict)


class RequestTracks:
    """`see` every event in order, then `close`."""

    def __init__(self, out: TraceEvents) -> None:
        self._out = out
        self._tracks: dict[Key, Track] = {}
        self._alive: dict[Key, _Life] = {}
        self._named: set[int] = set()

    def open_track(self, rank: int, request: str | None) -> Track | None:
        """The track of a request that is in some slice now."""
        key = (rank, request or "")
        return self._tracks[key] if key in self._alive else None

    def waiting_and_running(self, rank: int) -> dict[str, float]:
        phases = [life.phase for (of, _), life in self._alive.items() if of == rank]
        waiting = sum(phase in ("waiting", "preempted") for phase in phases)
        return {"running": len(phases) - waiting, "waiting": waiting}

    def see(self, envelope: Envelope, ts: float) -> None:
        event, rank = envelope.event, envelope.rank
        match event:
            case RequestAdded():
                self._enter((rank, event.request), "waiting", ts, _added(event))
            case StepScheduled():
                self._scheduled(envelope, event, ts)
            case RequestPreempted():
                self._enter((rank, event.request), "preempted", ts, {"reason": event.reason})
            case RequestFinished():
                self._leave((rank, event.request), ts, {"finished": event.reason})
            case PrefixLookedUp():
                hit = {"hit_tokens": event.hit_tokens, "missed_because": event.missed_because}
                self._instant((rank, event.request), "prefix looked up", ts, hit)
            case AbortRequested():
                self._instant((rank, event.request), "abort requested", ts, {})
            case TokensSampled():
                self._sampled(rank, event)
            case SpanDropped():
                self.close(ts, {"ends": "a span of events was dropped here"})

    def close(self, ts: float, why: dict[str, Any]) -> None:
        """Whoever is alive is in no slice any more."""
        for key in list(self._alive):
            self._leave(key, ts, why)

    def _scheduled(self, envelope: Envelope, event: StepScheduled, ts: float) -> None:
        for name, phase in zip(event.requests, event.phases, strict=False):
            key = (envelope.rank, name)
            life = self._alive.get(key)
            if life is None or life.phase != phase:
                self._enter(key, phase, ts, {"from_step": envelope.step, "tokens": 0})

    def _sampled(self, rank: int, event: TokensSampled) -> None:
        for name in event.requests:
            life = self._alive.get((rank, name))
            if life is not None and "tokens" in life.args:
                life.args["tokens"] += 1

    def _enter(self, key: Key, phase: str, ts: float, args: dict[str, Any]) -> None:
        if key in self._alive:
            self._leave(key, ts, {})
        self._track(key)
        self._alive[key] = _Life(phase, ts, {k: v for k, v in args.items() if v is not None})

    def _leave(self, key: Key, ts: float, args: dict[str, Any]) -> None:
        life = self._alive.pop(key, None)
        if life is not None:
            told = life.args | args
            self._out.slice(self._tracks[key], CATEGORY, life.phase, life.since, ts, told)

    def _instant(self, key: Key, what: str, ts: float, args: dict[str, Any]) -> None:
        told = {k: v for k, v in args.items() if v is not None}
        self._out.instant(self._track(key), CATEGORY, what, ts, told)

    def _track(self, key: Key) -> Track:
        found = self._tracks.get(key)
        if found is None:
            rank, name = key
            found = self._tracks[key] = Track(requests_pid(rank), len(self._tracks) + 1)
            if rank not in self._named:
                self._named.add(rank)
                self._out.name_process(found.pid, f"requests{of_rank(rank)}")
            self._out.name_track(found, name)
        return found


def _added(event: RequestAdded) -> dict[str, Any]:
    """What is known of a request, without a word of what it says."""
    return {
        "prompt_tokens": len(event.prompt_tokens),
        "max_new_tokens": event.max_new_tokens,
        "tenant": event.tenant,
        "session": event.session,
        "adapter": event.adapter,
        "priority": event.priority,
        "parent": event.parent,
    }


def engine_pid(rank: int) -> int:
    return 2 * rank + 1


def requests_pid(rank: int) -> int:
    return 2 * rank + 2


def of_rank(rank: int) -> str:
    return f" of rank {rank}" if rank else ""
