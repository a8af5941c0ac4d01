"""What a trace doesn't tell, and what to record so that it does."""

from __future__ import annotations

from collections.abc import Container

from ..recorder.events import (
    RING,
    BlockAllocated,
    BlockShared,
    Envelope,
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestRevised,
    RunEnded,
    RunStarted,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TokensSampled,
)
from .state import State

_NEEDED_WITH_ROWS: tuple[tuple[type, str], ...] = (
    (StepScheduled, "what each row's true length is"),
    (StepDispatched, "when each step reads"),
    (SlotsWritten, "what was written"),
    (StepCompleted, "when each step was done"),
)
"""Events that every step with rows has, and what can't be known without them."""


NO_END = "there is no RunEnded: the run was cut off, or record its end"


class Seqs:
    """The numbering of a trace's events, which all of its ranks share."""

    def __init__(self) -> None:
        self.next = 0


class Completeness:
    """Counts what is there, event by event."""

    def __init__(self, seqs: Seqs | None = None) -> None:
        self._seen: set[type] = set()
        self._seqs = seqs or Seqs()
        self._gaps: list[tuple[int, int, str]] = []
        """(first, last, sentence) of each stretch of seqs that isn't there."""
        self._with_rows: set[int] = set()
        self._steps: dict[type, set[int]] = {kind: set() for kind, _ in _NEEDED_WITH_ROWS}
        self._built: set[int] = set()
        self._mapped: set[int] = set()
        self._unwritten: dict[int, set[str]] = {}
        """Step that wrote nothing yet -> those of its requests that did not fail."""
        self._failed: set[int] = set()
        """Steps that raised, so that all their requests ended with an error: they wrote nothing."""
        self._without_tokens = 0
        self._without_keys = 0
        self._added: set[str] = set()
        self._strangers: set[str] = set()
        self._lengths: dict[str, int] = {}
        """Request -> how many tokens it is known to have."""
        self._unsampled: dict[str, int] = {}
        """Request -> index of the first of its tokens that no event tells."""

    def see(self, envelope: Envelope) -> None:
        event, kind = envelope.event, type(envelope.event)
        self._seen.add(kind)
        self._judge_seq(envelope)
        self._judge_tokens(event)
        if kind in self._steps:
            self._steps[kind].add(envelope.step)
        match event:
            case StepScheduled():
                if any(event.scheduled):
                    self._with_rows.add(envelope.step)
            case RequestAdded():
                self._added.add(event.request)
            case InputsBuilt():
                names = {name for name in event.requests if name is not None}
                self._strangers |= names - self._added
                self._unwritten.setdefault(envelope.step, set()).update(names)
                self._built.add(envelope.step)
                if any(slot >= 0 for slot in event.slot_mapping):
                    self._mapped.add(envelope.step)
                if any(name is not None for name in event.requests):
                    self._with_rows.add(envelope.step)
            case RequestFinished() if event.reason == "error":
                self._fail(event.request)
            case MaskBuilt() if event.form == "dense":
                self._without_keys += event.allowed is None or event.keys is None
            case SlotsWritten() if event.write not in ("copy", "transfer", "pad", "dummy"):
                self._unwritten.pop(envelope.step, None)
                if any(slot >= 0 for slot in event.slots):
                    self._with_rows.add(envelope.step)
                    self._without_tokens += event.tokens is None
            case _:
                pass

    def missing(self) -> tuple[str, ...]:
        """One sentence each; empty when the trace tells everything."""
        found = [sentence for _, _, sentence in self._gaps]
        if RunStarted not in self._seen:
            found.append("there is no RunStarted: record the pool's size and block size")
        if RunEnded not in self._seen:
            found.append(NO_END)
        if self._strangers:
            found.append(
                f"{len(self._strangers)} requests, {min(self._strangers)} among them, have rows "
                "and no RequestAdded: record requests with their tokens"
            )
        if self._with_rows & self._built and not self._seen & {BlockAllocated, BlockShared}:
            found.append("there is no BlockAllocated: record which request holds which block")
        unbuilt = sorted(self._with_rows - self._built)
        if unbuilt:
            found.append(
                f"{_steps(unbuilt)} had rows and no InputsBuilt: record what the device is given"
            )
        last = max(self._steps[StepCompleted], default=0)
        cut_in = self._cut_in()
        for kind, what in _NEEDED_WITH_ROWS:
            needed = (self._with_rows & self._built) - {cut_in}  # the end is told already
            if kind is SlotsWritten:
                needed = (needed & self._mapped) - self._failed
            if kind is StepCompleted:
                needed = {step for step in needed if step > last}
            lacking = sorted(needed - self._steps[kind])
            if lacking:
                found.append(f"{_steps(lacking)} had no {kind.__name__}: record {what}")
        if self._unsampled:
            request, index = next(iter(self._unsampled.items()))
            found.append(
                f"token {index} of {request} is in no TokensSampled, though later ones are: "
                "record every token that becomes part of a request"
            )
        if self._without_keys:
            found.append(
                f"{self._without_keys} dense MaskBuilt had no allowed or no keys: "
                "record which keys each query sees"
            )
        if self._without_tokens:
            found.append(
                f"{self._without_tokens} SlotsWritten had no tokens: record the tokens written"
            )
        return tuple(found)

    def _cut_in(self) -> int | None:
        """The step in which the trace breaks off: what it lacks, nobody failed to record."""
        last = max(self._built, default=None)
        broke_off = RunEnded not in self._seen and last not in self._steps[StepCompleted]
        return last if broke_off and StepCompleted in self._seen else None

    def _fail(self, request: str) -> None:
        for step, names in tuple(self._unwritten.items()):
            if request in names:
                names.discard(request)
                if not names:
                    self._failed.add(step)
                    del self._unwritten[step]

    def _judge_tokens(self, event: Event) -> None:
        """`TokensSampled` lists every token that becomes part of a request."""
        known = self._lengths
        match event:
            case RequestAdded():
                known[event.request] = len(event.prompt_tokens)
            case RequestForked() if event.request in known:
                known[event.request] = max(known[event.request], event.tokens)
            case RequestRevised() if event.request in known:
                known[event.request] = event.tokens_kept + len(event.tokens or ())
            case TokensSampled():
                for request, position in zip(event.requests, event.positions, strict=False):
                    length = known.get(request)
                    if length is not None and position > length:
                        self._unsampled.setdefault(request, length)
                    if length is not None:
                        known[request] = max(length, position + 1)
            case SpanDropped():
                known.clear()
            case _:
                pass

    def forget(self, requests: Container[str], before: int) -> None:
        """Let go of steps before that one which told everything, and of all requests but these."""
        told = {
            step
            for step in self._with_rows & self._built
            if step < before and all(self._tells(step, kind) for kind, _ in _NEEDED_WITH_ROWS)
        }
        for steps in (self._with_rows, self._built, self._mapped, *self._steps.values()):
            steps -= told
        self._added = {name for name in self._added if name in requests}
        self._lengths = {n: length for n, length in self._lengths.items() if n in requests}

    def _tells(self, step: int, kind: type) -> bool:
        """Whether the trace has the step's event of this kind, or it needs none."""
        is_needed = kind is not SlotsWritten or step in self._mapped - self._failed
        return step in self._steps[kind] or not is_needed

    def take_up(self, state: State) -> None:
        """Where a ring begins: of what is under way, the state tells what went before."""
        if any(pool.blocks for pool in state.pools.values()):
            self._seen.add(BlockAllocated)
        for number, step in state.steps.items():
            has = {
                StepScheduled: step.scheduled,
                StepDispatched: step.dispatched_seq,
                SlotsWritten: step.written_seq,
                StepCompleted: step.completed_seq,
            }
            for kind, known in has.items():
                if known is not None:
                    self._steps[kind].add(number)
            if step.builds:
                self._built.add(number)

    def _judge_seq(self, envelope: Envelope) -> None:
        event, expected = envelope.event, self._seqs.next
        self._seqs.next = max(envelope.seq + 1, expected)
        if isinstance(event, SpanDropped):
            last = event.first_seq + event.count - 1
            self._gaps = [gap for gap in self._gaps if gap[0] < event.first_seq or gap[1] > last]
            self._gaps.append((event.first_seq, last, _dropped(event)))
        elif envelope.seq > expected:
            missing = f"events {expected} to {envelope.seq - 1} are missing: record the whole run"
            self._gaps.append((expected, envelope.seq - 1, missing))


def _dropped(event: SpanDropped) -> str:
    last = event.first_seq + event.count - 1
    if event.why != RING:
        return (
            f"events {event.first_seq} to {last} were dropped ({event.why}): record to a faster "
            "disk, or with --when-full block"
        )
    known = "; what was held and written then is known" if event.state is not None else ""
    return (
        f"events {event.first_seq} to {last} had left the ring{known}, how it came to be is not: "
        "record with a longer --ring"
    )


def _steps(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    return f"{len(numbers)} steps, the first of them step {numbers[0]},"
