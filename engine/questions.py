"""What the engine asks at the seam: frozen values with all that their answers may depend on.

Each says what its answer is; `decisions.py` has the right ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..recorder.decision import DecisionId
from .content import Content
from .inputs import BufferUse, ScrubHow
from .prefix_cache import Entry, IndexView


@dataclass(frozen=True, slots=True)
class Admit:
    """May this request join the running ones in this step? Answer: bool."""

    id: DecisionId
    needed_tokens: int
    budget_tokens: int | None
    """Tokens that the step has left; None when the request gets the step for itself."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which cached block serves as this request's block? Answer: `Hit` or None."""

    id: DecisionId
    content: Content
    """What the request's own tokens say that the block must hold."""
    index: IndexView


@dataclass(frozen=True, slots=True)
class Hit:
    block: int
    key: str


@dataclass(frozen=True, slots=True)
class Acquire:
    """The count of a block that gets one more holder. Answer: the new count."""

    id: DecisionId
    block: int
    ref_count: int


class HandedOut(NamedTuple):
    request: str
    block: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """A free block is handed out. Answer: `Taken`.

    The queue's pick is part of the question, since any free block would be right: which one is a
    switch. What can go wrong is that another is taken than the one picked (two threads that pop
    the same one), or that it keeps its key.
    """

    id: DecisionId
    head: int
    """The block whose turn it is."""
    entry: Entry | None
    """The index entry that the block still carries."""
    before: HandedOut | None = None
    """What was handed out just before it in this step."""


@dataclass(frozen=True, slots=True)
class Taken:
    block: int
    unregister: bool


@dataclass(frozen=True, slots=True)
class Free:
    """A holder lets go of a block. Answer: `Released`."""

    id: DecisionId
    block: int
    ref_count: int


@dataclass(frozen=True, slots=True)
class Released:
    ref_count: int
    freed: bool
    """The block goes to the tail of the free queue."""


@dataclass(frozen=True, slots=True)
class Trim:
    """A request that lives on gave up a block. Answer: the block its table keeps there, or None."""

    id: DecisionId
    block: int


@dataclass(frozen=True, slots=True)
class Scrub:
    """Is a block overwritten, as the switches want it at this moment? Answer: how, or None.

    Asked when a block is freed and when its index entry goes, or each time it is handed out.
    """

    id: DecisionId
    block: int
    how: ScrubHow
    is_cached: bool
    """It carries an index entry: its content is still wanted."""


@dataclass(frozen=True, slots=True)
class Publish:
    """May a block enter the prefix index? Answer: the key to register, or None for not yet."""

    id: DecisionId
    block: int
    content: Content
    """What its request's tokens say that it holds once it is whole."""
    written: int
    """How many of these tokens completed passes have written."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A request takes over its parent's prompt. Answer: how many tokens."""

    id: DecisionId
    parent: str
    tokens: int
    """The parent's, once the step is done in which the fork is made."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A request writes into a block that others hold too. Answer: the number of leading slots
    that are copied to a block of its own first, or None to write in place."""

    id: DecisionId
    block: int
    ref_count: int
    first_written: int
    """Offset in the block of the first slot that is written."""


@dataclass(frozen=True, slots=True)
class Retire:
    """A request ended while a step or a transfer that uses its blocks is under way. Answer: bool,
    whether they are released before that is over."""

    id: DecisionId
    steps_under_way: tuple[int, ...]
    transfers_under_way: tuple[str, ...] = ()
    """Into its blocks."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """Drafts were verified. Answer: how many of the request's tokens count as computed."""

    id: DecisionId
    computed: int
    """Before the step."""
    proposed: tuple[int, ...]
    accepted: int


@dataclass(frozen=True, slots=True)
class Load:
    """Does host memory serve as this block of a request? Answer: the host block, or None."""

    id: DecisionId
    content: Content
    host_block: int | None
    """The one that holds this content."""


@dataclass(frozen=True, slots=True)
class Store:
    """A cached block that nobody holds goes to host memory. Answer: the block that is read."""

    id: DecisionId
    block: int
    content: Content


@dataclass(frozen=True, slots=True)
class Ready:
    """May a request run that host memory is loaded for? Answer: bool."""

    id: DecisionId
    transfers_under_way: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """Weights, an adapter or the pool's memory were loaded anew. Answer: bool, whether the index
    entries leave that were computed before."""

    id: DecisionId
    what: str
    adapter: str | int | None


@dataclass(frozen=True, slots=True)
class Staging:
    """Which buffer is the step built in? Answer: one of `buffers`."""

    id: DecisionId
    buffers: tuple[str, ...]
    in_use: tuple[str, ...]
    """Those that steps in flight read."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What does the device replay? Answer: `BufferUse`, `built` if it is this step's."""

    id: DecisionId
    built: BufferUse


@dataclass(frozen=True, slots=True)
class RowShape:
    """One row of the step, as far as its masks may depend on it."""

    request: str | None
    phase: str
    query_len: int
    seq_len: int
    columns: tuple[int, ...]  # [seq_len] column of the mask that is the row's k-th key; -1 = none
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """The block table that the device is given for one row. Answer: tuple of blocks, -1 = hole."""

    id: DecisionId
    entries: tuple[int | None, ...]
    seq_len: int
    block_size: int
    first: int = 0
    """Index of the first block inside the window of the row's first query."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots that a row's tokens are written to. Answer: tuple, one per token."""

    id: DecisionId
    table: tuple[int, ...]
    computed: int
    query_len: int
    block_size: int


@dataclass(frozen=True, slots=True)
class PadSlots:
    """The slots that pads write to. Answer: tuple of `count` slots, -1 = nowhere."""

    id: DecisionId
    count: int
    beside: tuple[int, ...]
    """The slots of the row that they pad, or of the last row."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of a row's tokens. Answer: tuple, one per token."""

    id: DecisionId
    computed: int
    query_len: int


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a row's queries see. Answer: bool array [query_len, width]."""

    id: DecisionId
    row: int
    rows: tuple[RowShape, ...]
    width: int


Question = (
    Admit
    | Share
    | Acquire
    | Reuse
    | Free
    | Trim
    | Scrub
    | Publish
    | Fork
    | Copy
    | Retire
    | Rollback
    | Load
    | Store
    | Ready
    | Reset
    | Staging
    | Replay
    | Table
    | Slots
    | PadSlots
    | Positions
    | Mask
)
Answer = Any
