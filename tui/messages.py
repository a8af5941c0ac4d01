"""What widgets and workers tell the screen; it alone decides what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.message import Message

from ..recorder.follow import End
from ..replay.state import State
from ..replay.verdict import Report
from .overview import Overview
from .presenters.spans import Row
from .trials import Outcome


@dataclass
class Seek(Message):
    """Go to an event."""

    seq: int


@dataclass
class BlockPicked(Message):
    block: int


@dataclass
class RequestPicked(Message):
    request: str


@dataclass
class StateFolded(Message):
    """A worker has the state after event `seq`."""

    seq: int
    state: State


@dataclass
class OverviewRead(Message):
    overview: Overview


@dataclass
class TraceGrew(Message):
    """A live trace has more events, or comes to its end."""

    last_seq: int
    overview: Overview
    end: End | None


@dataclass
class TraceChecked(Message):
    report: Report
    problems: tuple[str, ...]


@dataclass
class TraceCut(Message):
    """A worker met damage, and the reader goes on with what comes before it."""

    problems: tuple[str, ...]


@dataclass
class TraceUnreadable(Message):
    """Something was asked of the trace that can't be read."""

    why: str


@dataclass
class Folding(Message):
    """How far the keyframes reach."""

    reached: int


@dataclass
class TrialEnded(Message):
    """One re-execution of the modal; `index` in its list of trials."""

    index: int
    outcome: Outcome


@dataclass
class BlockExplained(Message):
    """A worker has looked up the chain behind the findings at `seq`, and the life of `block`."""

    seq: int
    block: int | None
    chain: Sequence[Row]
    history: Sequence[Row]
