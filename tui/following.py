"""What `kvrewind tail` writes: steps, events, or JSON; and what it says about findings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.text import Text

from ..recorder.events import Envelope, PiecesDefined, RunStarted
from ..recorder.jsonl import to_line
from ..recorder.reader import TraceReader
from ..replay.online import OnlineChecks
from .console import out, say
from .finding_log import FindingLog
from .harmless import harmless_line
from .presenters.events import Names, kind_role, summary
from .presenters.listing import WholeNames
from .presenters.pieces import Pieces
from .presenters.spans import Line, Span, plain
from .presenters.step_line import step_line
from .presenters.wanted import Wanted

FOUND = 1

_STYLES = {"bad": "bold red", "warn": "yellow", "good": "green", "dim": "dim", "strong": "bold"}
"""A terminal has a ground of its own, so only what the system's colours can say."""


class Output:
    """Shows steps as they come. `last_step` is the highest that was shown."""

    def __init__(self) -> None:
        self.last_step: int | None = None

    def prepare(self, reader: TraceReader, start: int) -> None:
        """Learn from the events before `start` what is needed to show those after it."""

    def show(self, step: int, envelopes: Sequence[Envelope], findings: int | None) -> None:
        """The events that came with a step, in order; and how many findings there are so far."""
        raise NotImplementedError


class JsonLines(Output):
    """The events in the form of the contract."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self._wanted = wanted

    def prepare(self, reader: TraceReader, start: int) -> None:
        _learn_header(self._wanted, reader, start)

    def show(self, step: int, envelopes: Sequence[Envelope], findings: int | None) -> None:
        for envelope in envelopes:
            if self._wanted.see(envelope):
                sys.stdout.write(to_line(envelope) + "\n")


class _Lines(Output):
    """Lines for a person, who knows requests and tokens by their names."""

    def __init__(self) -> None:
        super().__init__()
        self._names = Names(WholeNames(), Pieces())
        self._console = out()

    def prepare(self, reader: TraceReader, start: int) -> None:
        for envelope in reader.find(kinds=[PiecesDefined.__name__], stop_seq=start):
            self._learn(envelope)

    def _learn(self, envelope: Envelope) -> None:
        if isinstance(event := envelope.event, PiecesDefined):
            self._names.pieces.define(event.tokens, event.pieces)

    def _write(self, line: Line) -> None:
        if self._console.is_terminal:
            text = Text.assemble(*((span.text, _STYLES.get(span.role, "")) for span in line))
            self._console.print(text, soft_wrap=True)
        else:
            sys.stdout.write(harmless_line(plain(line)) + "\n")


class StepLines(_Lines):
    """A line a step."""

    def show(self, step: int, envelopes: Sequence[Envelope], findings: int | None) -> None:
        for envelope in envelopes:
            self._learn(envelope)
        self._write(step_line(step, envelopes, self._names, findings))


class EventLines(_Lines):
    """A line an event."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self._wanted = wanted

    def prepare(self, reader: TraceReader, start: int) -> None:
        super().prepare(reader, start)
        _learn_header(self._wanted, reader, start)

    def show(self, step: int, envelopes: Sequence[Envelope], findings: int | None) -> None:
        for envelope in envelopes:
            self._learn(envelope)
            if self._wanted.see(envelope):
                self._write(
                    (
                        Span(f"{envelope.position:<12} ", "dim"),
                        Span(f"{envelope.kind:<18} ", kind_role(envelope.kind)),
                        *summary(envelope, self._names),
                    )
                )


def _learn_header(wanted: Wanted, reader: TraceReader, start: int) -> None:
    for envelope in reader.find(kinds=[RunStarted.__name__], stop_seq=start):
        wanted.see(envelope)


class Checking:
    """The checks beside it; they speak on standard error, so that the data stays data."""

    def __init__(self) -> None:
        self._log = FindingLog(self._unsaid_yet)
        self._checks = OnlineChecks(self._log.sighted, self._failed)
        self._unsaid: list[str] = []

    def judge(self, envelopes: Sequence[Envelope]) -> None:
        """The events of a step."""
        self._checks(envelopes)

    @property
    def findings(self) -> int:
        """How many there are so far. Passphrases count where no leak accounts for them."""
        by_check = self._checks.by_check
        return by_check.total() - by_check["passphrase"] or by_check["passphrase"]

    def speak(self) -> None:
        """Tell what was found since the last time."""
        sys.stdout.flush()
        for remark in self._unsaid:
            say(remark)
        self._unsaid.clear()

    def ended(self) -> bool:
        """Tell what came of it all; whether something was found."""
        report = self._checks.report()
        if self._checks.failure is None:
            self._log.ended(report)
        self.speak()
        return report.exit_status == FOUND

    def _unsaid_yet(self, remark: str) -> None:
        self._unsaid.append(remark)

    def _failed(self, error: Exception) -> None:
        self._unsaid_yet(f"the checks stopped ({error}); `kvrewind check` judges the whole trace")
