"""The engine's tracks: steps and their parts, transfers, the pool and the hit rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...recorder.events import (
    Envelope,
    EpochChanged,
    RequestAdded,
    RunStarted,
    Scalar,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TransferFinished,
    TransferStarted,
)
from .pool_level import PoolLevel
from .request_tracks import engine_pid, of_rank
from .survey import StepSpan, Survey
from .trace_events import TraceEvents, Track

RUN_TID, FIRST_LANE_TID, TRANSFER_TID = 1, 2, 1000

_PART_ENDS = {StepScheduled: "schedule", StepDispatched: "build", StepCompleted: "compute"}
_LAST_PART = "account"


@dataclass(slots=True)
class _Step:
    """A step that is under way."""

    start: float
    args: dict[str, Any]
    cuts: list[tuple[str, float]] = field(default_factory=list)
    """Its parts so far, and when each ended."""


@dataclass(slots=True)
class _Rank:
    """What the counters of one process count."""

    levels: dict[int, PoolLevel] = field(default_factory=dict)
    blocks: int | None = None
    """In each group's pool, sentinels apart."""
    prompts: dict[str, int] = field(default_factory=dict)
    """Requests that were never scheduled -> tokens of their prompt."""
    prompt_tokens: int = 0
    hit_tokens: int = 0


class EngineTracks:
    """`see` every event in order, then `close`."""

    def __init__(self, out: TraceEvents, survey: Survey) -> None:
        self._out = out
        self._spans = survey.steps
        self._made_up = survey.clock.made_up_because is not None
        self._open: dict[tuple[int, int], _Step] = {}
        self._ranks: dict[int, _Rank] = {}
        self._named: set[Track] = set()
        self._transfers: dict[tuple[int, Scalar], tuple[str, str]] = {}
        self._transfers_begun = 0
        self._told: dict[tuple[int, str], dict[str, float]] = {}

    def track_of(self, envelope: Envelope) -> Track:
        """That of the event's step, or of what belongs to no step."""
        pid = engine_pid(envelope.rank)
        span = self._spans.get((envelope.rank, envelope.step))
        if span is None:
            return self._named_track(Track(pid, RUN_TID), "run")
        clock = " (no times: an event a µs)" if self._made_up else ""
        name = f"steps{clock}" if not span.lane else f"steps, {span.lane + 1} in flight"
        return self._named_track(Track(pid, FIRST_LANE_TID + span.lane), name)

    def see(self, envelope: Envelope, ts: float) -> None:
        rank = self._rank(envelope.rank)
        key = (envelope.rank, envelope.step)
        span = self._spans.get(key)
        if span is not None:
            self._step(envelope, span, ts)
        self._count(rank, envelope)
        self._transfer(envelope, ts)
        self._instant(envelope, ts)

    def at_end_of_step(self, envelope: Envelope) -> bool:
        span = self._spans.get((envelope.rank, envelope.step))
        return span is not None and envelope.seq == span.last_seq

    def counters(self, rank: int, requests: dict[str, float], ts: float) -> None:
        """What the pool, the cache and the queue are like now, where that has changed."""
        counted = self._rank(rank)
        for group, level in sorted(counted.levels.items()):
            name = "blocks" + (f" of KV group {group}" if group else "")
            held, cached = len(level.held), len(level.cached)
            values: dict[str, float] = {"held": held, "cached": cached}
            if counted.blocks is not None:
                values["free"] = max(counted.blocks - held - cached, 0)
            self._counter(rank, name, ts, values)
        self._counter(rank, "requests", ts, requests)
        if counted.prompt_tokens:
            rate = round(100 * counted.hit_tokens / counted.prompt_tokens, 3)
            self._counter(rank, "prefix hit rate", ts, {"%": rate})

    def close(self, ts: float) -> None:
        for rank, transfer in list(self._transfers):
            self._end_transfer(rank, transfer, "not finished", ts)

    # --- steps ------------------------------------------------------------------------------------

    def _step(self, envelope: Envelope, span: StepSpan, ts: float) -> None:
        key = (envelope.rank, envelope.step)
        step = self._open.setdefault(key, _Step(ts, {"first_event": envelope.position}))
        if isinstance(envelope.event, StepScheduled):
            step.args |= _scheduled(envelope.event)
        part = _PART_ENDS.get(type(envelope.event))
        if part is not None and part not in [name for name, _ in step.cuts]:
            step.cuts.append((part, ts))
        if envelope.seq == span.last_seq:
            self._end_step(envelope, self._open.pop(key), ts)

    def _end_step(self, envelope: Envelope, step: _Step, ts: float) -> None:
        track = self.track_of(envelope)
        self._out.slice(track, "step", f"step {envelope.step}", step.start, ts, step.args)
        start = step.start
        for name, end in [*step.cuts, (_LAST_PART, ts)]:
            self._out.slice(track, "step", name, start, end, {})
            start = end

    # --- counters ---------------------------------------------------------------------------------

    def _count(self, rank: _Rank, envelope: Envelope) -> None:
        event = envelope.event
        match event:
            case RunStarted():
                rank.blocks = event.num_blocks - len(set(event.sentinel_blocks))
            case RequestAdded() if event.parent is None:
                rank.prompts[event.request] = len(event.prompt_tokens)
            case StepScheduled():
                for name, computed in zip(event.requests, event.computed, strict=False):
                    prompt = rank.prompts.pop(name, 0)
                    rank.prompt_tokens += prompt
                    rank.hit_tokens += min(computed, prompt)
            case SpanDropped():
                rank.levels.clear()
                rank.prompts.clear()
            case _ if envelope.kind.startswith("Block"):
                group = getattr(event, "group", None) or 0
                level = rank.levels.get(group) or PoolLevel()
                if level.see(event):
                    rank.levels[group] = level

    def _counter(self, rank: int, name: str, ts: float, values: dict[str, float]) -> None:
        if self._told.get((rank, name)) != values:
            self._told[rank, name] = values
            self._out.counter(engine_pid(rank), name, ts, values)

    # --- the rest ---------------------------------------------------------------------------------

    def _transfer(self, envelope: Envelope, ts: float) -> None:
        event, rank = envelope.event, envelope.rank
        track = Track(engine_pid(rank), TRANSFER_TID)
        if isinstance(event, TransferStarted):
            self._end_transfer(rank, event.transfer, "begun again", ts)
            self._transfers_begun += 1
            of, name = hex(self._transfers_begun), event.direction
            self._transfers[rank, event.transfer] = (of, name)
            args = {"blocks": len(event.blocks), "request": event.request}
            self._named_track(track, "transfers")
            self._out.begin(track, "transfer", name, of, ts, args)
        elif isinstance(event, TransferFinished):
            self._end_transfer(rank, event.transfer, event.status, ts)

    def _end_transfer(self, rank: int, transfer: Scalar, status: str, ts: float) -> None:
        begun = self._transfers.pop((rank, transfer), None)
        if begun is not None:
            of, name = begun
            track = Track(engine_pid(rank), TRANSFER_TID)
            self._out.end(track, "transfer", name, of, ts, {"status": status})

    def _instant(self, envelope: Envelope, ts: float) -> None:
        event = envelope.event
        match event:
            case SpanDropped():
                what = f"{event.count} events dropped"
                args = {"first_seq": event.first_seq, "why": event.why}
            case EpochChanged():
                what, args = f"new {event.what}", {"epoch": event.epoch}
            case _:
                return
        self._out.instant(self.track_of(envelope), "run", what, ts, args)

    def _rank(self, rank: int) -> _Rank:
        found = self._ranks.get(rank)
        if found is None:
            found = self._ranks[rank] = _Rank()
            self._out.name_process(engine_pid(rank), f"engine{of_rank(rank)}")
        return found

    def _named_track(self, track: Track, name: str) -> Track:
        if track not in self._named:
            self._named.add(track)
            self._out.name_track(track, name)
        return track


def _scheduled(event: StepScheduled) -> dict[str, Any]:
    return {
        "rows": len(event.requests),
        "tokens": sum(event.scheduled),
        "prefill_rows": event.phases.count("prefill"),
        "decode_rows": event.phases.count("decode"),
    }
