"""Where the masks of a step show what they should hide, or hide what they should show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...recorder.events import MaskBuilt
from ..state import BuiltMask
from .base import Culprit, Violation
from .case import Case
from .contents import SlotProblem, problems_of
from .masks import (
    WEAKEST_FILL,
    Layout,
    allowed_rows,
    columns_of,
    expected_rows,
    fill_in,
    has_rows_of,
    layout_of,
)
from .rows import Row, StepRows

Reason = Literal["bits", "shape", "dtype", "fill", "after-softmax", "window"]


class Shown(NamedTuple):
    """A key that a query sees and should not."""

    row: Row
    query: int
    column: int
    slot: int | None
    position: int | None


@dataclass(slots=True, eq=False)
class MaskFault:
    """One row's wrong mask (`bits`), or a mask that is wrong as a whole (the other reasons)."""

    mask: BuiltMask
    step: int
    row: Row
    reason: Reason
    query: int | None = None
    key: int | None = None
    expected: object = None
    actual: object = None
    like: Row | None = None
    """The row whose right mask this row was given."""
    shown: list[Shown] = field(default_factory=list)

    @property
    def culprit(self) -> Culprit:
        return mask_culprit(self.mask, self.step, self.row)


def mask_culprit(mask: BuiltMask, step: int, row: Row) -> Culprit:
    """The mask, blamed for its decision about that row."""
    decision = mask.event.decision or row.decision("mask")
    return Culprit(mask.seq, step, "MaskBuilt", decision, row.request)


def faults_of(case: Case, step: StepRows) -> list[MaskFault]:
    """All mask faults of a step. A trace without masks has none: rows read by their lengths."""
    faults: list[MaskFault] = []
    for group, masks in step.masks.items():
        for mask in masks:
            rows = rows_under(step, group, mask.event)
            if any(case.is_judged(row.request) for row in rows):
                faults.extend(_judge(case, step, group, mask, rows))
    return faults


def rows_under(step: StepRows, group: int, mask: MaskBuilt) -> list[Row]:
    """The rows of the build that the mask belongs to: the one with its requests, or the last."""
    builds: dict[int, list[Row]] = {}
    for row in step.rows:
        if row.group == group:
            builds.setdefault(row.build.seq, []).append(row)
    for rows in builds.values():
        if tuple(row.request for row in rows) == mask.requests:
            return rows
    return builds[max(builds)] if builds else []


def add_shown(case: Case, fault: MaskFault, cause: Violation) -> None:
    """What the mask shows joins what its rows read."""
    for shown in fault.shown:
        request = shown.row.request
        if shown.slot is None or request is None:
            continue
        if not case.is_judged(request):
            continue
        for problem in problems_of(case, shown.row, request, shown.slot, None):
            if problem.leaks_to(request):
                shown.row.problems.append(_blamed(problem, shown, cause))
                if cause.source is None and problem.write is not None:
                    cause.source = problem.write.request


def _blamed(problem: SlotProblem, shown: Shown, cause: Violation) -> SlotProblem:
    return SlotProblem(
        problem.kind, problem.slot, problem.position, problem.block, problem.generation,
        problem.write, problem.hold, problem.mismatch, shown.query, shown.column, cause,
    )  # fmt: skip


def _judge(
    case: Case, step: StepRows, group: int, mask: BuiltMask, rows: list[Row]
) -> list[MaskFault]:
    event = mask.event
    pool = case.state.pool(group)
    num_slots = (case.state.header.num_blocks if case.state.header else 0) * pool.block_size
    layout = layout_of(event, rows, num_slots, pool.block_size)
    whole = _whole_mask(case, step, group, mask, rows, layout)
    if layout is None:
        return whole
    window = case.state.window(group) or event.window
    rights = {row.number: expected_rows(layout, row, window) for row in layout.rows}
    faults = (
        _judge_row(step, mask, layout, row, rights)
        for row in layout.rows
        if case.is_judged(row.request) and not row.has_wrong_count and row.length_fault is None
    )
    return whole + [fault for fault in faults if fault is not None]


def _judge_row(
    step: StepRows, mask: BuiltMask, layout: Layout, row: Row, rights: dict[int, list[int]]
) -> MaskFault | None:
    right = rights[row.number]
    given = allowed_rows(mask.event, row, layout)
    if given == right:
        return None
    if all(given) or not _is_finite(mask.event.fill):
        _keep_visible(layout, row, given)
    if row.bad_entries:
        return None  # the table is wrong, so it says nothing about the mask
    fault = MaskFault(mask, step.step, row, "bits")
    seen = 0
    for query, (allowed, expected) in enumerate(zip(given, right, strict=True)):
        wrong = allowed ^ expected
        if wrong and fault.query is None:
            column = next(columns_of(wrong, layout.width))
            is_right_visible = bool(expected >> (layout.width - 1 - column) & 1)
            fault.query, fault.key = row.start + query, column
            fault.expected, fault.actual = is_right_visible, not is_right_visible
        extra = allowed & ~expected
        if not allowed and _is_finite(mask.event.fill):
            extra = (1 << layout.width) - 1 & ~expected  # uniform weights over every key
        for column in columns_of(extra & ~seen, layout.width):
            fault.shown.append(_shown(layout, row, row.start + query, column))
        seen |= extra
    fault.like = _row_with(layout, row, given, rights)
    return fault


def _keep_visible(layout: Layout, row: Row, given: list[int]) -> None:
    """What the mask hides from every query of the row is not read, whatever its table lists."""
    visible = 0
    for allowed in given:
        visible |= allowed
    row.problems = [
        problem
        for problem in row.problems
        if problem.position is None
        or (column := layout.column(row, problem.position)) is None
        or visible >> (layout.width - 1 - column) & 1
    ]


def _row_with(
    layout: Layout, row: Row, given: list[int], rights: dict[int, list[int]]
) -> Row | None:
    """The other row whose right mask, query by query, is what this row was given."""
    for other in layout.rows:
        right = rights[other.number]
        if other is row or other.request is None or not right:
            continue
        padded = right + [right[-1]] * (len(given) - len(right))
        if given in (padded[: len(given)], right[-len(given) :]):
            return other
    return None


def _whole_mask(
    case: Case,
    step: StepRows,
    group: int,
    mask: BuiltMask,
    rows: list[Row],
    layout: Layout | None,
) -> list[MaskFault]:
    event = mask.event
    first = next(row for row in rows if case.is_judged(row.request))
    found: list[MaskFault] = []

    def add(reason: Reason, expected: object, actual: object, shows_all: bool) -> None:
        fault = MaskFault(mask, step.step, first, reason, first.start, None, expected, actual)
        if shows_all and layout is not None:
            fault.shown = _everything(case, group, layout, event.window)
            fault.key = fault.shown[0].column if fault.shown else None
        found.append(fault)

    queries = sum(event.query_lens) if has_rows_of(event, rows) else 0
    if event.form == "dense" and event.allowed and queries and len(event.allowed) % queries:
        add("shape", f"{queries} rows of whole bytes", len(event.allowed), False)
    if event.meaning == "additive" and event.dtype.removeprefix("torch.") == "bool":
        add("dtype", "a floating dtype", event.dtype, True)
    elif event.fill is not None and not _is_strong(event):
        add("fill", f"-inf or at most {WEAKEST_FILL:g}", event.fill, True)
    if event.applied == "after_softmax":
        add("after-softmax", "before_softmax", event.applied, False)
    window = case.state.window(group)
    if event.form == "lengths" and None not in (window, event.window) and window != event.window:
        add("window", window, event.window, False)
    return found


def _everything(case: Case, group: int, layout: Layout, window: int | None) -> list[Shown]:
    """All keys of the layout, for every live row, but those that it may see anyway."""
    shown: list[Shown] = []
    for row in layout.rows:
        if row.request is None or not row.query_len:
            continue
        right = expected_rows(layout, row, case.state.window(group) or window)
        hidden = (1 << layout.width) - 1 & ~right[-1]
        shown.extend(
            _shown(layout, row, row.start, column) for column in columns_of(hidden, layout.width)
        )
    return shown


def _shown(layout: Layout, row: Row, query: int, column: int) -> Shown:
    slot, position = layout.slot(row, column)
    return Shown(row, query, column, slot, position)


def _is_strong(event: MaskBuilt) -> bool:
    """The fill, as written or as the dtype holds it, leaves a masked key no weight."""
    if event.fill is None:
        return True
    if event.meaning == "bool_keep":
        return event.fill <= WEAKEST_FILL
    held = fill_in(event.dtype, event.fill)
    return held is not None and held <= WEAKEST_FILL


def _is_finite(fill: float | None) -> bool:
    return fill is not None and fill != float("-inf")
