"""The fields of one event, laid out to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

from ...recorder.events import (
    BlockRegistered,
    Event,
    InputsBuilt,
    MaskBuilt,
    RequestAdded,
    SlotsWritten,
    StepScheduled,
    TokensSampled,
)
from ...recorder.fields import fields_of
from .events import Names, block_span, word
from .spans import Line, Row, Span, flowed, joined, ranges, wrapped

MOST_VALUES = 24
MOST_ROWS = 64


def details(event: Event, names: Names, width: int) -> list[Row]:
    """Rows of a step as a table, or all fields one after the other."""
    special = _DETAILS.get(type(event))
    if special is not None:
        return special(event, names, width)
    return _fields(event, names, width)


def _fields(event: Event, names: Names, width: int, without: tuple[str, ...] = ()) -> list[Row]:
    pieces: list[Line] = []
    for spec in fields_of(type(event)):
        value = getattr(event, spec.name)
        if value is None or spec.name in without:
            continue
        pieces.append((Span(f"{spec.name} ", "dim"), _value(spec.name, value, names)))
    return [Row(part) for line in flowed(pieces, width) for part in _folded(line, width)]


def _folded(line: Line, width: int) -> list[Line]:
    """A single piece that is longer than a line, on several."""
    if sum(len(span.text) for span in line) <= width:
        return [line]
    name, rest = line[0], "".join(span.text for span in line[1:])
    return [*wrapped(f"{name.text}{rest}", width)]


def _value(name: str, value: Any, names: Names) -> Span:
    if name in ("request", "parent") and isinstance(value, str):
        return names.owners.name(value)
    if name == "block":
        return block_span(value)
    return Span(_text(value), "text")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        shown = " ".join(_text(item) for item in value[:MOST_VALUES])
        return shown + (f" … ({len(value)})" if len(value) > MOST_VALUES else "")
    return word(value)


def _request_added(event: RequestAdded, names: Names, width: int) -> list[Row]:
    rows = _fields(event, names, width, without=("prompt_tokens",))
    prompt = names.pieces.said(event.prompt_tokens)
    return [*rows, *(Row(line) for line in wrapped(prompt, width))]


def _block_registered(event: BlockRegistered, names: Names, width: int) -> list[Row]:
    rows = _fields(event, names, width, without=("tokens",))
    text = names.pieces.said(event.tokens)
    return [*rows, *(Row(line) for line in wrapped(text, width))]


def _step_scheduled(event: StepScheduled, names: Names, width: int) -> list[Row]:
    rows = zip_longest(event.requests, event.phases, event.computed, event.scheduled)
    return [
        Row(
            (
                names.owners.name(name),
                Span(f" {phase} ", "text"),
                Span(f"+{scheduled}, {computed} computed before", "dim"),
            ),
            request=name,
        )
        for name, phase, computed, scheduled in list(rows)[:MOST_ROWS]
    ]


def _inputs_built(event: InputsBuilt, names: Names, width: int) -> list[Row]:
    rows = [Row((Span(f"{'row':<6}{'queries':>7}{'length':>7}  blocks", "dim"),))]
    columns = zip_longest(event.requests, event.query_lens, event.seq_lens, event.block_tables)
    for name, queries, length, table in list(columns)[:MOST_ROWS]:
        tag = names.owners.tag(name)
        blocks = joined([(block_span(b) if b >= 0 else Span("-", "dim"),) for b in table or ()])
        line = (
            Span(f"{tag.text:<6}", tag.role),
            Span(f"{queries:>7}{length:>7}  ", "text"),
            *blocks,
        )
        rows.append(Row(line, request=name))
    return rows


def _mask_built(event: MaskBuilt, names: Names, width: int) -> list[Row]:
    rows = joined(
        [
            (names.owners.tag(name), Span(f" {count}", "dim"))
            for name, count in zip(event.requests, event.query_lens, strict=False)
        ],
        "  ",
    )
    fields = _fields(event, names, width, without=("requests", "query_lens"))
    return [*fields, Row((Span("queries ", "dim"), *rows))]


def _slots_written(event: SlotsWritten, names: Names, width: int) -> list[Row]:
    slots: dict[str | None, tuple[list[int], list[int | None]]] = {}
    tokens = event.tokens or (None,) * len(event.slots)
    for name, slot, token in zip(event.requests, event.slots, tokens, strict=False):
        mine = slots.setdefault(name, ([], []))
        mine[0].append(slot)
        mine[1].append(token)
    rows: list[Row] = []
    for name, (numbers, values) in list(slots.items())[:MOST_ROWS]:
        tag = names.owners.tag(name)
        text = names.pieces.text(values)
        line = (
            Span(f"{tag.text:<5}", tag.role),
            Span(f"slots {ranges(numbers)} ", "text"),
            Span(f"“{text}”" if text else "", "dim"),
        )
        rows.append(Row(line, request=name))
    return rows


def _tokens_sampled(event: TokensSampled, names: Names, width: int) -> list[Row]:
    columns = zip_longest(event.requests, event.tokens, event.positions, event.rows)
    rows: list[Row] = []
    for name, token, position, row in list(columns)[:MOST_ROWS]:
        tag = names.owners.tag(name)
        line = (
            Span(f"{tag.text:<5}", tag.role),
            Span(f"says {names.pieces.said([token])}", "text"),
            Span(f" at {position}, from row {row}", "dim"),
        )
        rows.append(Row(line, request=name))
    return rows


_DETAILS: Mapping[type[Event], Callable[[Any, Names, int], list[Row]]] = {
    RequestAdded: _request_added,
    BlockRegistered: _block_registered,
    StepScheduled: _step_scheduled,
    InputsBuilt: _inputs_built,
    MaskBuilt: _mask_built,
    SlotsWritten: _slots_written,
    TokensSampled: _tokens_sampled,
}
