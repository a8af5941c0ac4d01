"""The pool as cells: whose content a block holds, who else may read it, and what is odd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ...replay.reads import slots_read
from ...replay.state import Block, Pool, State, StepState
from ...replay.writes import Write
from .blame import CULPRIT, Blame
from .events import Names
from .owners import TAG_WIDTH
from .spans import Line, Span

Fill = Literal["held", "cached", "free", "sentinel", "unknown"]

WRITTEN, READ = "w", "◂"

LARGE_WIDTH = 2 * TAG_WIDTH - 1
MEDIUM_WIDTH = 6
TINY_WIDTH = 3


@dataclass(frozen=True)
class PoolView:
    """What the grid shows of a state: one KV group, seen by one request."""

    state: State
    blame: Blame
    request: str | None = None
    group: int = 0

    @cached_property
    def pool(self) -> Pool:
        return self.state.pool(self.group)

    @cached_property
    def at_work(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.state.unfinished())

    @cached_property
    def reads(self) -> frozenset[int]:
        """The blocks that the seeing request reads."""
        if self.request is None:
            return frozenset()
        return read_blocks(self.state, self.request, self.group)


class BlockCell(NamedTuple):
    block: int
    fill: Fill
    owner: str | None
    """The request that wrote what is in it; before that, the one that holds it."""
    others: tuple[str, ...]
    """Holders, and victims of findings that read it without holding it, other than the owner; the
    seeing request first."""
    is_written: bool
    """Written in the present step."""
    is_read: bool
    """By the seeing request, as its table or mask now stands."""
    is_blamed: bool

    @property
    def marks(self) -> str:
        flags = ((self.is_written, WRITTEN), (self.is_read, READ), (self.is_blamed, CULPRIT))
        return "".join(mark for is_set, mark in flags if is_set)


def block_count(state: State) -> int:
    return state.header.num_blocks if state.header else 0


def cell(view: PoolView, number: int) -> BlockCell:
    block = view.pool.block(number)
    write = present_writer(view.state, view.group, number)
    holders = [holder.request for holder in block.holders]
    owner = write.request if write else (holders[0] if holders else None)
    readers = dict.fromkeys((*holders, *victims_reading(view, number)))
    others = [name for name in readers if name != owner]
    others.sort(key=lambda name: name != view.request)
    return BlockCell(
        number,
        _fill(view.pool, block, number),
        owner,
        tuple(others),
        is_written=write is not None and write.step == view.state.step,
        is_read=number in view.reads,
        is_blamed=is_blamed(view, number),
    )


def present_writer(state: State, group: int, number: int) -> Write | None:
    """Who wrote last into a block in its present generation."""
    write = state.last_writer_of_block(group, number)
    block = state.pool(group).block(number)
    return write if write is not None and write.generation == block.generation else None


def read_blocks(state: State, request: str, group: int = 0) -> frozenset[int]:
    """The blocks that the present step's table and mask let a request read, until the step
    completes; else those of its own table."""
    size = state.pool(group).block_size
    for build in reversed(_open_step(state).builds):
        if (build.event.group or 0) == group and request in build.event.requests:
            row = build.event.requests.index(request)
            masks = [m.event for m in _open_step(state).masks if (m.event.group or 0) == group]
            slots = slots_read(build.event, masks[-1] if masks else None, row, size)
            return frozenset(slot // size for slot in slots)
    return frozenset(b for b in state.pool(group).table(request) if b is not None)


def device_table(state: State, request: str, group: int = 0) -> tuple[int, ...] | None:
    """The blocks that the present step's build lists for a request, until the step completes;
    None if it has no row there."""
    for build in reversed(_open_step(state).builds):
        event = build.event
        if (event.group or 0) != group or request not in event.requests:
            continue
        row = event.requests.index(request)
        if row < len(event.block_tables) and row < len(event.seq_lens):
            size = max(state.pool(group).block_size, 1)
            return event.block_tables[row][: -(-event.seq_lens[row] // size)]
    return None


def _open_step(state: State) -> StepState:
    step = state.steps.get(state.step)
    return step if step is not None and step.completed_seq is None else StepState()


def is_blamed(view: PoolView, number: int) -> bool:
    """From the culprit until the finding shows, and as long as a victim reads the block."""
    blame, seq = view.blame.of_block(number), view.state.seq or 0
    if blame is None:
        return False
    return blame.is_open(seq) or bool(victims_reading(view, number))


def victims_reading(view: PoolView, number: int) -> list[str]:
    """The victims of findings about a block that have it in their tables."""
    blame, seq = view.blame.of_block(number), view.state.seq or 0
    if blame is None:
        return []
    return [
        name
        for name in view.at_work
        if blame.is_victim(name, seq)
        and (number in view.pool.table(name) or (name == view.request and number in view.reads))
    ]


def _fill(pool: Pool, block: Block, number: int) -> Fill:
    if number in pool.sentinels:
        return "sentinel"
    if not block.is_known:
        return "unknown"
    if block.holders:
        return "held"
    return "cached" if block.keys else "free"


# Cells as text. Filled: held. Outlined: nobody holds it, but its key can be found. Dot: free.


def large(shown: BlockCell, names: Names, width: int = LARGE_WIDTH) -> tuple[Line, Line]:
    """Two lines: number and marks, then owner and other holders."""
    role = _role(shown, names)
    marks = shown.marks
    number = str(shown.block).ljust(width - len(marks))
    top = (Span(number, role), *_marks(shown, role))
    return top, (Span(_label(shown, names, width).ljust(width), f"{role}.mark"),)


def medium(shown: BlockCell, names: Names) -> Line:
    """One line of `MEDIUM_WIDTH`: owner, other holders, the gravest mark."""
    role = _role(shown, names)
    label = _owner_tag(shown, names)
    if shown.others:
        label = f"{label[:3]}+{len(shown.others)}"
    mark = shown.marks[-1:]
    text = label[: MEDIUM_WIDTH - 1].ljust(MEDIUM_WIDTH - len(mark))
    return (Span(text, role), *_marks(shown, role)[-1:])


def tiny(shown: BlockCell, names: Names) -> Line:
    """Three cells: the end of the owner's tag, and a mark or `+` where it is shared."""
    role = _role(shown, names)
    tag = _owner_tag(shown, names)
    text = (tag if len(tag) <= 2 else tag[-2:]).ljust(2)
    if shown.marks:
        return (Span(text, role), *_marks(shown, role)[-1:])
    return (Span(text + ("+" if shown.others else " "), role),)


def _marks(shown: BlockCell, role: str) -> Line:
    return tuple(
        Span(mark, "bad.fill" if mark == CULPRIT else f"{role}.mark") for mark in shown.marks
    )


def _label(shown: BlockCell, names: Names, width: int) -> str:
    owner = _owner_tag(shown, names)
    if not shown.others:
        return owner
    first, rest = names.owners.of(shown.others[0]).tag, len(shown.others) - 1
    one = f"{owner}→{first}" + (f"+{rest}" if rest else "")
    return one if len(one) <= width else f"{owner}→+{len(shown.others)}"[:width]


def _owner_tag(shown: BlockCell, names: Names) -> str:
    if shown.fill in ("free", "sentinel", "unknown"):
        return {"free": "·", "sentinel": "pad", "unknown": "?"}[shown.fill]
    return names.owners.of(shown.owner).tag


def _role(shown: BlockCell, names: Names) -> str:
    if shown.fill in ("free", "sentinel", "unknown"):
        return "cell.free"
    owner = names.owners.of(shown.owner).role
    return f"{owner}.fill" if shown.fill == "held" else f"{owner}.cached"
