"""What is known of the event, block or request under the cursor, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...recorder.events import Envelope
from ...replay.findings import Finding
from ...replay.state import State
from ...replay.writes import Write
from .blame import CULPRIT, DETECTED, Blame
from .details import details
from .events import Names, block_span, kind_role, short_key, summary, word
from .findings import parties
from .spans import Line, Row, Span, counted, flowed, joined, ranges, wrapped

MOST_FINDINGS = 4
"""One wrong decision may show in any number of them; the list of findings has them all."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What the inspector is asked to explain: an event, and the block that goes with it."""

    envelope: Envelope
    state: State
    blame: Blame
    block: int | None = None
    is_block_picked: bool = False
    """The person asked for this block, so it comes first."""
    chain: Sequence[Row] = ()
    """Rows of the provenance chain of the findings here, if it is known by now."""
    history: Sequence[Row] = ()
    """Rows of the block's life, if it is known by now."""


def inspect(shown: Inspected, names: Names, width: int) -> list[Row]:
    seq = shown.envelope.seq
    first, *others = shown.blame.at(seq) or (None,)
    event: list[Row] = [] if first is None else finding_rows(first, seq, names, width)
    event += shown.chain
    event += [_finding_line(finding, seq, names) for finding in others[:MOST_FINDINGS]]
    if len(others) > MOST_FINDINGS:
        event.append(Row((Span(f"  and {len(others) - MOST_FINDINGS} more", "dim"),)))
    event += event_rows(shown.envelope, names, width)
    if shown.block is None:
        name = getattr(shown.envelope.event, "request", None)
        known = name in shown.state.requests
        return [*event, *(request_rows(shown.state, name, names, width) if known else ())]
    block = [*block_rows(shown.state, shown.block, names, width), *shown.history]
    return [*block, *event] if shown.is_block_picked else [*event, *block]


def finding_rows(finding: Finding, seq: int, names: Names, width: int) -> list[Row]:
    """What was found, in the checks' words, and the exact place of a wrong row or mask."""
    is_culprit = _is_culprit(finding, seq)
    head: Line = (
        Span(f"{CULPRIT if is_culprit else DETECTED} ", "bad"),
        Span("to blame for " if is_culprit else "shows ", "bad"),
        Span(f"{finding.check} ", "strong"),
        Span(f"{finding.fault_class or ''} ", "bad"),
        *_seen_at(finding, seq),
    )
    rows = [Row(head, seq=_other_end(finding, seq))]
    rows += [Row(line) for line in wrapped(finding.explanation, width, "text", "  ")]
    place = [
        (Span(f"{name} ", "dim"), Span(word(value), "text"))
        for name in ("row", "query", "key", "expected", "actual")
        if (value := getattr(finding, name)) is not None and finding.row is not None
    ]
    rows += [Row(line) for line in flowed(place, width, "  ")]
    if finding.also_affected:
        tags = joined([(names.owners.name(name),) for name in finding.also_affected])
        rows.append(Row((Span("  also affected ", "dim"), *tags)))
    return rows


def _finding_line(finding: Finding, seq: int, names: Names) -> Row:
    line: Line = (
        Span(f"{CULPRIT if _is_culprit(finding, seq) else DETECTED} ", "bad"),
        Span(f"{finding.check} ", "text"),
        *parties(finding, names),
        Span("  "),
        *_seen_at(finding, seq),
    )
    return Row(line, seq=_other_end(finding, seq))


def _is_culprit(finding: Finding, seq: int) -> bool:
    return finding.culprit_seq == seq or seq in finding.culprits


def _seen_at(finding: Finding, seq: int) -> Line:
    if finding.seq == seq:
        return ()
    return Span("seen at ", "dim"), Span(finding.position, "place")


def _other_end(finding: Finding, seq: int) -> int | None:
    """From the culprit to where it shows, and back."""
    return finding.seq if _is_culprit(finding, seq) else finding.culprit_seq


def event_rows(envelope: Envelope, names: Names, width: int) -> list[Row]:
    head = (
        Span(f"{envelope.kind} ", kind_role(envelope.kind)),
        Span(f"{envelope.position}  ", "place"),
        *summary(envelope, names),
    )
    if len("".join(span.text for span in head)) > width:
        head = head[:2]
    return [Row(head), *details(envelope.event, names, width)]


def block_rows(state: State, number: int, names: Names, width: int) -> list[Row]:
    """The block's generation, holders and keys, then one line per run of slots."""
    block = state.pool().block(number)
    holders = joined(
        [(names.owners.name(h.request), Span(f"[{h.table_index}]", "dim")) for h in block.holders]
    )
    keys = ", ".join(short_key(key) for key in block.keys)
    head = (
        Span("block ", "dim"),
        block_span(number),
        Span(f"  generation {block.generation}", "dim"),
        Span(f", {counted(block.ref_count, 'holder')} ", "dim"),
        *holders,
        Span(f"  key {keys}" if keys else "", "dim"),
        Span("  free" if block.is_free else "", "dim"),
    )
    return [Row(head, block=number), *slot_rows(state, number, names, width)]


class _Run:
    """Neighbouring slots with one writer, written by one event."""

    def __init__(self, write: Write | None, slot: int, is_present: bool) -> None:
        self.write = write
        self.is_present = is_present
        self.slots = [slot]
        self.tokens: list[int | None] = [write.token if write else None]

    def takes(self, write: Write | None, is_present: bool) -> bool:
        if write is None or self.write is None:
            return write is self.write
        mine, its = self.write, write
        return (mine.request, mine.seq, self.is_present) == (its.request, its.seq, is_present)


def slot_rows(state: State, number: int, names: Names, width: int) -> list[Row]:
    """Last writer of each slot, neighbours with the same one together."""
    generation = state.pool().block(number).generation
    runs: list[_Run] = []
    for slot in state.pool().slots_of(number):
        write = state.writer(None, slot)
        is_present = write is not None and write.generation == generation
        if runs and runs[-1].takes(write, is_present):
            runs[-1].slots.append(slot)
            runs[-1].tokens.append(write.token if write else None)
        else:
            runs.append(_Run(write, slot, is_present))
    return [_run_row(run, names) for run in runs]


def _run_row(run: _Run, names: Names) -> Row:
    slots = Span(f"  {ranges(run.slots):<9} ", "dim")
    if run.write is None:
        return Row((slots, Span("never written", "dim")))
    write = run.write
    text = names.pieces.text(run.tokens)
    stale = "" if run.is_present else " (earlier generation)"
    line = (
        slots,
        Span("by ", "dim"),
        names.owners.name(write.request),
        Span(f" {write.kind} ", "dim"),
        Span(f"{write.step}:{write.seq}", "place"),
        Span(stale, "warn"),
        Span(f" “{text}”" if text else "", "text" if run.is_present else "dim"),
    )
    return Row(line, seq=write.seq)


def request_rows(state: State, name: str, names: Names, width: int) -> list[Row]:
    """What a request asked and has said."""
    request = state.requests[name]
    prompt = len(request.added.prompt_tokens)
    rows = [Row((Span("request ", "dim"), names.owners.name(name), Span(f"  {request.status}")))]
    for label, tokens in (("asked", request.tokens[:prompt]), ("says", request.tokens[prompt:])):
        text = names.pieces.text(tokens)
        if text:
            rows += [Row(line) for line in wrapped(f"{label} “{text}”", width, "text", "  ")]
    return rows
