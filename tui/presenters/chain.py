"""From a wrong decision to what it did, in the manner of a memory sanitizer."""

from __future__ import annotations

from collections.abc import Sequence

from ...replay.history import Entry
from ...replay.provenance import Chain, Written
from .events import Names
from .spans import Line, Row, Span, counted, ranges

LABEL_WIDTH = 15
EARLIER, LATER = 8, 3
"""Entries of a block's life around the present position."""


def chain_rows(chain: Chain, names: Names) -> list[Row]:
    """Who read, who wrote, who gave up and freed, who was given it, and what allowed it."""
    rows: list[Row] = []
    if chain.read is not None:
        reader = names.owners.name(chain.read.request)
        slots = Span(f" reads slots {ranges(sorted(chain.read.slots))}", "text")
        rows.append(_link("read by", chain.read.position, (reader, slots), chain.read.seq))
    for written in chain.written[-3:]:
        rows.append(_link("last written by", written.position, _wrote(written, names), written.seq))
    rows += [_entry("released by", entry, names) for entry in chain.released[-3:]]
    rows += [_entry("freed by", entry, names) for entry in chain.freed[-2:]]
    if chain.allocated is not None:
        rows.append(_entry("allocated by", chain.allocated, names))
    if chain.held is not None and chain.held != chain.allocated:
        rows.append(_entry("held since", chain.held, names))
    if chain.culprit is not None:
        rows.append(_entry("allowed by", chain.culprit, names, "bad"))
    return rows


def history_rows(entries: Sequence[Entry], seq: int, names: Names) -> list[Row]:
    """The block's life around `seq`, what comes later dimmed."""
    before = [entry for entry in entries if entry.seq <= seq]
    after = [entry for entry in entries if entry.seq > seq]
    rows = [_life(entry, seq, names) for entry in before[-EARLIER:]]
    if len(before) > EARLIER:
        rows.insert(0, Row((Span(f"  … {counted(len(before) - EARLIER, 'event')} before", "dim"),)))
    return [*rows, *(_life(entry, seq, names) for entry in after[:LATER])]


def _life(entry: Entry, seq: int, names: Names) -> Row:
    mark = "▸" if entry.seq == seq else " "
    text = (Span(entry.text, "dim"),) if entry.seq > seq else _tinted(entry, names)
    return Row((Span(f" {mark}{entry.position:<9}", "place"), *text), seq=entry.seq)


def _tinted(entry: Entry, names: Names, role: str = "text") -> Line:
    """The entry's words, with its request in the owner's colour."""
    before, name, after = entry.text.partition(entry.request or "\0")
    if not name:
        return (Span(entry.text, role),)
    return Span(before, role), names.owners.name(name), Span(after, role)


def _wrote(written: Written, names: Names) -> Line:
    positions = sorted({write.position for write in written.writes})
    text = names.pieces.text([write.token for write in written.writes])
    return (
        names.owners.name(written.request),
        Span(f" at {ranges(positions)} ({written.kind})", "text"),
        Span(f" “{text}”" if text else "", "bad"),
    )


def _entry(label: str, entry: Entry, names: Names, role: str = "text") -> Row:
    return _link(label, entry.position, _tinted(entry, names, role), entry.seq)


def _link(label: str, position: str, line: Line, seq: int) -> Row:
    head = (Span(f"  {label:<{LABEL_WIDTH}} ", "dim"), Span(f"{position:<7} ", "place"))
    return Row((*head, *line), seq=seq)
