"""The rows of a dispatched step as the checks look at them.

A row is one request's part of an `InputsBuilt`. Its true length comes from `StepScheduled`
(computed + scheduled); without that event the given `seq_len` is all there is to go by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from ...recorder.decision import DecisionId, row_index
from ...recorder.events import Rows, Scalar
from ..state import Build, BuiltMask, State, StepState
from .base import Culprit

if TYPE_CHECKING:
    from .contents import SlotProblem
    from .mask_faults import MaskFault
    from .tables import BadEntry

LengthFault = Literal["row-identity", "dangling-table", "unwritten-read"]


@dataclass(slots=True, eq=False)
class Row:
    """One row. `start` is the offset of its first token in the packed arrays."""

    build: Build
    step: int
    number: int
    request: str | None
    start: int
    query_len: int
    seq_len: int
    table: tuple[int, ...]
    true_computed: int | None
    true_count: int | None
    group: int
    true_start: int | None = None
    """Offset by the scheduled counts, where those given disagree with them."""
    ordinal: int = 0
    """How often the request was preempted before."""
    bad_entries: tuple[BadEntry, ...] = ()
    problems: list[SlotProblem] = field(default_factory=list)
    length_fault: LengthFault | None = None

    @property
    def computed(self) -> int:
        """Index of the row's first token in its request."""
        if self.true_computed is not None:
            return self.true_computed
        return max(self.seq_len - self.query_len, 0)

    @property
    def true_len(self) -> int | None:
        if self.true_computed is None or self.true_count is None:
            return None
        return self.true_computed + self.true_count

    @property
    def has_wrong_count(self) -> bool:
        """Another number of tokens than was scheduled, so that all offsets are off."""
        return self.true_count is not None and self.true_count != self.query_len

    @property
    def queries(self) -> range:
        """Positions of the row's queries in its request."""
        return range(self.computed, self.computed + self.query_len)

    @property
    def writes(self) -> range:
        """The packed tokens that are the row's by what was scheduled, if the counts disagree."""
        start = self.start if self.true_start is None else self.true_start
        count = self.query_len if self.true_start is None else self.true_count
        return range(start, start + (count or 0))

    @property
    def slots(self) -> tuple[int, ...]:
        return self.build.event.slot_mapping[self.start : self.start + self.query_len]

    @property
    def positions(self) -> tuple[int, ...]:
        return self.build.event.positions[self.start : self.start + self.query_len]

    @property
    def tokens(self) -> tuple[int, ...] | None:
        tokens = self.build.event.tokens
        return None if tokens is None else tokens[self.start : self.start + self.query_len]

    @property
    def phase(self) -> str | None:
        phases = self.build.event.phases or ()
        return phases[self.number] if self.number < len(phases) else None

    def decision(self, kind: str) -> str | None:
        """The id of a builder's decision about this row; it has no event of its own."""
        if self.request is None:
            return None
        length = self.seq_len if self.true_len is None else self.true_len
        count = self.query_len if self.true_count is None else self.true_count
        index = row_index(length, count, self.phase)
        group = 0 if kind == "positions" else self.group  # one row has the same in every group
        return str(DecisionId(kind, self.request, index, self.ordinal, group))

    def culprit(self, kind: str = "table") -> Culprit:
        """The build, blamed for its decision of that kind about this row."""
        decision = self.build.event.decision or self.decision(kind)
        return Culprit(self.build.seq, self.step, "InputsBuilt", decision, self.request)

    def slot_at(self, position: int, block_size: int) -> int | None:
        """Where the built table says that a token is; None at a hole or past the end."""
        index = position // block_size
        if position < 0 or index >= len(self.table) or self.table[index] < 0:
            return None
        return self.table[index] * block_size + position % block_size


@dataclass(slots=True, eq=False)
class StepRows:
    """All rows that read when a step is dispatched, pads included, group by group."""

    step: int
    seq: int
    rows: list[Row]
    masks: dict[int, list[BuiltMask]]
    scheduled: frozenset[str] = frozenset()
    mask_faults: list[MaskFault] = field(default_factory=list)

    def live(self) -> list[Row]:
        return [row for row in self.rows if row.request is not None]

    def beside(self, row: Row) -> list[Row]:
        """The other live rows of the same build."""
        return [r for r in self.live() if r is not row and r.build is row.build]


def rows_of(build: Build, step: int, state: StepState) -> list[Row]:
    """The rows of one build; arrays that are too short make short rows, never an error."""
    event = build.event
    scheduled = _scheduled(state)
    rows: list[Row] = []
    start = 0
    for number, request in enumerate(event.requests):
        count = _get(event.query_lens, number)
        computed, expected = scheduled.get(request, (None, None)) if request else (None, None)
        rows.append(
            Row(
                build,
                step,
                number,
                request,
                start,
                max(count, 0),
                max(_get(event.seq_lens, number), 0),
                event.block_tables[number] if number < len(event.block_tables) else (),
                computed,
                expected,
                event.group or 0,
            )
        )
        start += max(count, 0)
    if any(row.has_wrong_count for row in rows):
        _set_true_starts(rows, len(event.slot_mapping))
    return rows


def _set_true_starts(rows: list[Row], num_tokens: int) -> None:
    counts = [row.query_len if row.true_count is None else row.true_count for row in rows]
    if sum(counts) == num_tokens:
        for row, start in zip(rows, accumulate([0, *counts]), strict=False):
            row.true_start, row.true_count = start, row.true_count or row.query_len


def active_builds(builds: tuple[Build, ...]) -> list[Build]:
    """The last build of each group and buffer: what the device is given."""
    last: dict[tuple[int, Scalar | None], Build] = {}
    for build in builds:
        last[build.event.group or 0, build.event.buffer] = build
    return sorted(last.values(), key=lambda build: build.seq)


def latest_rows(rows: list[Row]) -> list[Row]:
    """A request that stands in several buffers of a group is read from the last one."""
    last = {(row.group, row.request): row.build.seq for row in rows if row.request is not None}
    return [
        row for row in rows if row.request is None or last[row.group, row.request] == row.build.seq
    ]


def latest_masks(masks: tuple[BuiltMask, ...], builds: list[Build]) -> dict[int, list[BuiltMask]]:
    """Per group and build the last mask of each set of layers.

    A mask whose requests are no build's belongs to one that was replaced, unless it is the last.
    """
    last: dict[tuple[int, tuple[int, ...] | None], BuiltMask] = {}
    of_build: dict[tuple[int, tuple[int, ...] | None, Rows], BuiltMask] = {}
    built = {(build.event.group or 0, build.event.requests) for build in builds}
    for mask in masks:
        group, event = mask.event.group or 0, mask.event
        last[group, event.layers] = mask
        if (group, event.requests) in built:
            of_build[group, event.layers, event.requests] = mask
    grouped: dict[int, list[BuiltMask]] = {}
    for mask in {m.seq: m for m in (*of_build.values(), *last.values())}.values():
        grouped.setdefault(mask.event.group or 0, []).append(mask)
    return grouped


def length_fault(row: Row, others: list[Row], held: int, block_size: int) -> LengthFault | None:
    """What a wrong `seq_len` is: another row's, beyond the blocks held, or inside them.

    `held`: one past the last table index at which the request holds a block.
    """
    true = row.true_len
    if true is None or row.seq_len == true or row.has_wrong_count:
        return None
    if any(row.seq_len in (o.true_len, o.seq_len) for o in others):
        return "row-identity"
    if row.seq_len > held * block_size:
        return "dangling-table"
    return "unwritten-read"


def visible_range(row: Row, state: State, block_size: int) -> range:
    """Positions that some query of the row sees by its length: causal, inside the window."""
    window = state.window(row.group)
    first = 0 if window is None else max(row.computed - window + 1, 0)
    return range(first, max(row.seq_len, first))


def _scheduled(state: StepState) -> dict[str, tuple[int, int]]:
    event = state.scheduled
    if event is None:
        return {}
    return {
        name: (computed, count)
        for name, computed, count in zip(
            event.requests, event.computed, event.scheduled, strict=False
        )
    }


def _get(values: tuple[int, ...], index: int) -> int:
    return values[index] if index < len(values) else 0
