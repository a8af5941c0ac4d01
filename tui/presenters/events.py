"""An event in one line, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...recorder.events import (
    AbortRequested,
    AttentionProbed,
    BlockAllocated,
    BlockCopied,
    BlockDigested,
    BlockFreed,
    BlockRegistered,
    BlockReleased,
    BlockScrubbed,
    BlockShared,
    BlockUnregistered,
    DecisionMade,
    DraftVerified,
    Envelope,
    EpochChanged,
    Event,
    GraphReplayed,
    InputsBuilt,
    MaskBuilt,
    PiecesDefined,
    PrefixLookedUp,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    RequestRevised,
    RunEnded,
    RunStarted,
    Scalar,
    SlotsWritten,
    SpanDropped,
    StepCompleted,
    StepDispatched,
    StepScheduled,
    TokensSampled,
    TransferFinished,
    TransferStarted,
)
from .owners import Owners
from .pieces import Pieces
from .spans import Line, Span, counted, joined, ranges

MOST_ROWS = 12
"""Rows of a step that a summary names; a list is narrower than that anyway."""


@dataclass(frozen=True, slots=True)
class Names:
    """What summaries need to call things by their names."""

    owners: Owners = field(default_factory=Owners)
    pieces: Pieces = field(default_factory=Pieces)
    block_size: int = 16


def summary(envelope: Envelope, names: Names) -> Line:
    """What happened, without the kind."""
    describe = SUMMARIES.get(type(envelope.event))
    return describe(envelope.event, names) if describe else ()


def kind_role(kind: str) -> str:
    return _KIND_ROLES.get(kind, "kind")


def short_key(key: Scalar | None) -> str:
    text = str(key)
    return text if len(text) <= 8 else text[:7] + "…"


def block_span(block: int, group: int | None = None) -> Span:
    """KV groups have block numbers of their own: b3, and b3@1 of group 1."""
    return Span(f"b{block}@{group}" if group else f"b{block}", "block")


def _of_group(group: int | None) -> str:
    return f"group {group}: " if group else ""


def _t(text: str) -> Span:
    return Span(text, "text")


def _d(text: str) -> Span:
    return Span(text, "dim")


def _request_added(event: RequestAdded, names: Names) -> Line:
    tenant = f", tenant {event.tenant}" if event.tenant is not None else ""
    return (
        names.owners.name(event.request),
        _t(f" asks: {len(event.prompt_tokens)} prompt tokens"),
        _d(f", at most {event.max_new_tokens} new{tenant}"),
    )


def _request_forked(event: RequestForked, names: Names) -> Line:
    return (
        names.owners.name(event.request),
        _t(" forks "),
        names.owners.name(event.parent),
        _d(f" with {counted(event.tokens, 'token')}"),
    )


def _abort_requested(event: AbortRequested, names: Names) -> Line:
    return names.owners.name(event.request), _t(" is to be aborted")


def _request_preempted(event: RequestPreempted, names: Names) -> Line:
    why = _d(f": {event.reason}") if event.reason else _d("")
    return names.owners.name(event.request), Span(" is preempted", "warn"), why


def _request_finished(event: RequestFinished, names: Names) -> Line:
    why = f"{event.reason}: {event.message}" if event.message else event.reason
    return names.owners.name(event.request), _t(" finishes "), _d(f"({why})")


def _prefix_looked_up(event: PrefixLookedUp, names: Names) -> Line:
    who = names.owners.name(event.request)
    if not event.blocks:
        return who, _t(" finds no cached prefix"), _d(f" ({event.missed_because or 'miss'})")
    found = joined([(block_span(b),) for b in event.blocks[:MOST_ROWS]])
    missed = f"; then {event.missed_because}" if event.missed_because else ""
    return who, _t(" finds "), *found, _d(f" ({event.hit_tokens} tokens hit{missed})")


def _request_revised(event: RequestRevised, names: Names) -> Line:
    return (
        names.owners.name(event.request),
        _t(f" is cut to {counted(event.tokens_kept, 'token')}"),
        _d(f", {len(event.tokens or ())} appended"),
    )


def _block_allocated(event: BlockAllocated, names: Names) -> Line:
    return (
        block_span(event.block, event.group),
        _t(" to "),
        names.owners.name(event.request),
        _d(f" [{event.index}]"),
    )


def _block_shared(event: BlockShared, names: Names) -> Line:
    fork = ", by a fork" if event.key is None else ""
    return (
        block_span(event.block, event.group),
        _t(" also to "),
        names.owners.name(event.request),
        _d(f" [{event.index}], {counted(event.ref_count, 'holder')}{fork}"),
    )


def _block_released(event: BlockReleased, names: Names) -> Line:
    index = "" if event.index is None else f" [{event.index}]"
    return (
        block_span(event.block, event.group),
        _t(" given up by "),
        names.owners.name(event.request),
        _d(f"{index}, {counted(event.ref_count, 'holder')} left"),
    )


def _block_freed(event: BlockFreed, names: Names) -> Line:
    return (
        block_span(event.block, event.group),
        _t(" free"),
        _d(", stays cached" if event.cached else ""),
    )


def _block_registered(event: BlockRegistered, names: Names) -> Line:
    by = (_d(" by "), names.owners.name(event.request)) if event.request else ()
    text = names.pieces.text(event.tokens)
    said = (_d(f" “{text}”"),) if text else ()
    return block_span(event.block, event.group), _t(f" as {short_key(event.key)}"), *by, *said


def _block_unregistered(event: BlockUnregistered, names: Names) -> Line:
    return (
        block_span(event.block, event.group),
        _t(f" loses {short_key(event.key)}"),
        _d(f" ({event.reason})"),
    )


def _block_copied(event: BlockCopied, names: Names) -> Line:
    return (
        block_span(event.source, event.group),
        _t(" into "),
        block_span(event.destination, event.group),
        _d(f", {counted(event.slots, 'slot')}"),
    )


def _block_scrubbed(event: BlockScrubbed, names: Names) -> Line:
    return block_span(event.block, event.group), _t(f" filled with {event.how}")


def _step_scheduled(event: StepScheduled, names: Names) -> Line:
    total = sum(event.scheduled)
    rows = joined(
        [
            (names.owners.tag(name), _d(f"+{count}" if phase == "prefill" else ""))
            for name, count, phase in _rows(event.requests, event.scheduled, event.phases)
        ]
    )
    return _t(f"{counted(total, 'token')}: "), *rows, *_more(len(event.requests))


def _inputs_built(event: InputsBuilt, names: Names) -> Line:
    """Lengths of the rows, and of pads how many tokens they are."""
    rows = joined(
        [
            (names.owners.tag(name), _d(f" x{queries}" if name is None else f" {length}"))
            for name, length, queries in _rows(event.requests, event.seq_lens, event.query_lens)
        ],
        "  ",
    )
    return _d(f"{_of_group(event.group)}lengths "), *rows, *_more(len(event.requests))


def _mask_built(event: MaskBuilt, names: Names) -> Line:
    rows = joined([(names.owners.tag(name),) for name in event.requests[:MOST_ROWS]])
    window = f", window {event.window}" if event.window is not None else ""
    keys = f" over keys {event.keys}" if event.keys else ""
    form = f"{_of_group(event.group)}{event.form}"
    return _d(f"{form}{keys}{window}: "), *rows, *_more(len(event.requests))


def _graph_replayed(event: GraphReplayed, names: Names) -> Line:
    return (_d(f"buffer {event.buffer}, stamp {event.stamp}, stride {event.stride}"),)


def _slots_written(event: SlotsWritten, names: Names) -> Line:
    """One run of slots per request, as far as they fit."""
    slots: dict[str | None, list[int]] = {}
    for request, slot in zip(event.requests, event.slots, strict=False):
        slots.setdefault(request, []).append(slot)
    runs = joined(
        [
            (names.owners.tag(request), _d(f" {ranges(numbers)}"))
            for request, numbers in list(slots.items())[:MOST_ROWS]
        ],
        "  ",
    )
    return _d(f"{_of_group(event.group)}{event.write} slots "), *runs


def _step_completed(event: StepCompleted, names: Names) -> Line:
    return (_d(f"read {event.read}"),) if event.read else ()


def _draft_verified(event: DraftVerified, names: Names) -> Line:
    return (
        names.owners.name(event.request),
        _t(f" keeps {event.accepted} of {len(event.proposed)} drafts"),
    )


def _tokens_sampled(event: TokensSampled, names: Names) -> Line:
    return joined(
        [
            (names.owners.tag(name), _t(" " + names.pieces.said([token])))
            for name, token in _rows(event.requests, event.tokens)
        ],
        "  ",
    )


def _attention_probed(event: AttentionProbed, names: Names) -> Line:
    role = "bad" if event.foreign_mass > 0 else "dim"
    return (
        names.owners.name(event.request),
        _d(f" layer {event.layer}: "),
        Span(f"foreign mass {event.foreign_mass:.3g}", role),
    )


def _block_digested(event: BlockDigested, names: Names) -> Line:
    return (
        block_span(event.block, event.group),
        _t(f" is {short_key(event.digest)}"),
        _d(f" at {event.at}"),
    )


def _transfer_started(event: TransferStarted, names: Names) -> Line:
    """Blocks and host blocks, in the direction in which the data goes."""
    device = joined([(block_span(b, event.group),) for b in event.blocks[:MOST_ROWS]])
    host = joined([(_t(f"h{block}"),) for block in (event.host_blocks or ())[:MOST_ROWS]])
    ends = (device, host) if event.direction in ("store", "send") else (host, device)
    way = joined([end for end in ends if end], " into ")
    asker = (_d(" for "), names.owners.name(event.request)) if event.request else ()
    return _t(f"{event.transfer}: "), *way, *asker


def _transfer_finished(event: TransferFinished, names: Names) -> Line:
    role = "dim" if event.status == "ok" else "warn"
    return _t(f"{event.transfer} "), Span(event.status, role)


def _decision_made(event: DecisionMade, names: Names) -> Line:
    who = (names.owners.name(event.request), _d(" ")) if event.request else ()
    return *who, _d(f"{event.about}: {_choice(event.choice)}")


def _choice(choice: Any) -> str:
    if isinstance(choice, Mapping):
        return ", ".join(f"{name} {_choice(value)}" for name, value in choice.items())
    if isinstance(choice, list | tuple):
        return " ".join(_choice(item) for item in choice) or "none"
    return short_key(choice) if isinstance(choice, str) else word(choice)


def word(value: Any) -> str:
    """A plain value as a person says it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _run_started(event: RunStarted, names: Names) -> Line:
    pool = f"{event.num_blocks} blocks of {event.block_size}"
    return _t(f"{event.engine} {event.engine_version}, {event.model}"), _d(f", {pool}")


def _run_ended(event: RunEnded, names: Names) -> Line:
    return (_d(event.reason),)


def _pieces_defined(event: PiecesDefined, names: Names) -> Line:
    return (_d(f"text of {counted(len(event.tokens), 'token')}"),)


def _epoch_changed(event: EpochChanged, names: Names) -> Line:
    adapter = f" of adapter {event.adapter}" if event.adapter is not None else ""
    return _t(f"{event.what}{adapter}: epoch {event.epoch}"), _d("")


def _span_dropped(event: SpanDropped, names: Names) -> Line:
    return Span(f"{counted(event.count, 'event')} lost", "warn"), _d(f": {event.why}")


def _rows(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*(column[:MOST_ROWS] for column in columns), strict=False))


def _more(count: int) -> Line:
    return (_d(f" and {count - MOST_ROWS} more"),) if count > MOST_ROWS else ()


def rows_by_phase(event: StepScheduled) -> Counter[str]:
    """Tokens that a step computes, by phase."""
    tokens: Counter[str] = Counter()
    for count, phase in zip(event.scheduled, event.phases, strict=False):
        tokens[phase] += count
    return tokens


SUMMARIES: Mapping[type[Event], Callable[[Any, Names], Line]] = {
    RunStarted: _run_started,
    RunEnded: _run_ended,
    PiecesDefined: _pieces_defined,
    EpochChanged: _epoch_changed,
    RequestAdded: _request_added,
    RequestForked: _request_forked,
    AbortRequested: _abort_requested,
    RequestPreempted: _request_preempted,
    RequestFinished: _request_finished,
    PrefixLookedUp: _prefix_looked_up,
    RequestRevised: _request_revised,
    BlockAllocated: _block_allocated,
    BlockShared: _block_shared,
    BlockReleased: _block_released,
    BlockFreed: _block_freed,
    BlockRegistered: _block_registered,
    BlockUnregistered: _block_unregistered,
    BlockCopied: _block_copied,
    BlockScrubbed: _block_scrubbed,
    StepScheduled: _step_scheduled,
    InputsBuilt: _inputs_built,
    MaskBuilt: _mask_built,
    StepDispatched: lambda event, names: (),
    GraphReplayed: _graph_replayed,
    SlotsWritten: _slots_written,
    StepCompleted: _step_completed,
    DraftVerified: _draft_verified,
    TokensSampled: _tokens_sampled,
    AttentionProbed: _attention_probed,
    BlockDigested: _block_digested,
    TransferStarted: _transfer_started,
    TransferFinished: _transfer_finished,
    DecisionMade: _decision_made,
    SpanDropped: _span_dropped,
}

_KIND_ROLES: Mapping[str, str] = {
    "StepScheduled": "kind.step",
    "RequestAdded": "kind.request",
    "RequestFinished": "kind.request",
    "RequestForked": "kind.request",
    "RequestRevised": "kind.request",
    "AbortRequested": "warn",
    "RequestPreempted": "warn",
    "SpanDropped": "warn",
    "TokensSampled": "kind.request",
    "DecisionMade": "dim",
    "PiecesDefined": "dim",
    "StepDispatched": "dim",
    "StepCompleted": "dim",
    "BlockAllocated": "kind.block",
    "BlockShared": "kind.block",
    "BlockReleased": "kind.block",
    "BlockFreed": "kind.block",
    "BlockRegistered": "kind.block",
    "BlockUnregistered": "kind.block",
    "BlockCopied": "kind.block",
    "BlockScrubbed": "kind.block",
}
