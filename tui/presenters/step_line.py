"""What one step did, in one line: what `kvrewind tail` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...recorder.events import (
    AbortRequested,
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockShared,
    BlockUnregistered,
    DraftVerified,
    Envelope,
    Event,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    StepScheduled,
    TokensSampled,
    TransferFinished,
    TransferStarted,
)
from .events import Names, rows_by_phase, summary
from .spans import Line, Span, counted, joined

MOST_NAMES = 6

_SAID_IN_WORDS = ("RunStarted", "RunEnded", "EpochChanged", "SpanDropped")
"""Events that are rare enough to be told as they are."""


def step_line(
    step: int, envelopes: Sequence[Envelope], names: Names, findings: int | None = None
) -> Line:
    """`step 12  0.841 s  3 rows: 16 prefill, 2 decode · 3 sampled · 4 blocks allocated ...`

    `envelopes` are those that came with the step, in order; `findings` how many there are so far.
    """
    seconds = envelopes[-1].t_ns * 1e-9
    head = (Span(f"step {step:<5}", "strong"), Span(f" {seconds:8.3f} s  ", "dim"))
    happened = [part for part in _happened(envelopes, names) if part]
    if findings:
        happened.append((Span(f"{counted(findings, 'finding')} so far", "bad"),))
    return *head, *joined(happened, " · ")


def _happened(envelopes: Sequence[Envelope], names: Names) -> Iterator[Line]:
    events = [envelope.event for envelope in envelopes]
    yield _requests(" arrives", [e.request for e in events if isinstance(e, RequestAdded)], names)
    yield _rows([e for e in events if isinstance(e, StepScheduled)])
    yield _sampled(events)
    yield from _blocks(events)
    preempted = [e.request for e in events if isinstance(e, RequestPreempted)]
    yield _requests(" preempted", preempted, names, "warn")
    aborted = [e.request for e in events if isinstance(e, AbortRequested)]
    yield _requests(" to be aborted", aborted, names, "warn")
    yield _transfers(events)
    for event in events:
        if isinstance(event, RequestFinished):
            role = "bad" if event.reason == "error" else "dim"
            yield (
                names.owners.name(event.request),
                Span(" ends", role),
                Span(f" ({event.reason})", role),
            )
    for envelope in envelopes:
        if envelope.kind in _SAID_IN_WORDS:
            yield Span(f"{envelope.kind} ", "strong"), *summary(envelope, names)


def _rows(scheduled: Sequence[StepScheduled]) -> Line:
    rows = sum(len(event.requests) for event in scheduled)
    if not rows:
        return ()
    tokens = [rows_by_phase(event) for event in scheduled]
    parts = [
        f"{count} {phase}"
        for phase in ("prefill", "decode")
        if (count := sum(by_phase[phase] for by_phase in tokens))
    ]
    return (Span(f"{counted(rows, 'row')}: {', '.join(parts) or 'nothing'}"),)


def _sampled(events: Sequence[Event]) -> Line:
    sampled = sum(len(e.tokens) for e in events if isinstance(e, TokensSampled))
    drafts = [e for e in events if isinstance(e, DraftVerified)]
    said = [f"{sampled} sampled"] if sampled else []
    if drafts:
        accepted, proposed = sum(e.accepted for e in drafts), sum(len(e.proposed) for e in drafts)
        said.append(f"{accepted} of {counted(proposed, 'draft')} kept")
    return (Span(", ".join(said)),) if said else ()


def _blocks(events: Sequence[Event]) -> Iterator[Line]:
    hit = sum(e.hit_tokens for e in events if isinstance(e, PrefixLookedUp))
    if hit:
        yield (Span(f"{counted(hit, 'token')} hit", "good"),)
    counts = (
        ("allocated", sum(isinstance(e, BlockAllocated) for e in events)),
        ("shared", sum(isinstance(e, BlockShared) for e in events)),
        ("copied", sum(isinstance(e, BlockCopied) for e in events)),
        ("freed", sum(isinstance(e, BlockFreed) for e in events)),
        (
            "evicted",
            sum(isinstance(e, BlockUnregistered) and e.reason == "evicted" for e in events),
        ),
    )
    said = [f"{count} {what}" for what, count in counts if count]
    if said:
        first, *others = said
        noun = "block" if first.startswith("1 ") else "blocks"
        yield (Span(", ".join([first.replace(" ", f" {noun} ", 1), *others]), "dim"),)


def _transfers(events: Sequence[Event]) -> Line:
    started = sum(isinstance(e, TransferStarted) for e in events)
    failed = sum(isinstance(e, TransferFinished) and e.status != "ok" for e in events)
    said = [f"{counted(started, 'transfer')} begun"] if started else []
    said += [f"{failed} not done"] if failed else []
    return (Span(", ".join(said), "warn" if failed else "dim"),) if said else ()


def _requests(what: str, requests: Sequence[str], names: Names, role: str = "text") -> Line:
    if not requests:
        return ()
    named = joined([(names.owners.name(request),) for request in requests[:MOST_NAMES]], ", ")
    more = len(requests) - MOST_NAMES
    others = (Span(f" and {more} more", "dim"),) if more > 0 else ()
    many = what.replace("arrives", "arrive") if len(requests) > 1 else what
    return *named, *others, Span(many, role)
