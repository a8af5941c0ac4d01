"""The seam: every decision of the engine is a question put to a policy.

A question is a frozen value with all that its answer may depend on. The *reference answer* is the
right answer to the same question from the same inputs; it never looks beyond them and never
repairs earlier damage, so it changes nothing where the decision was right. A planted fault is
another answer to some kinds of question. The engine's own code knows neither.

    engine ── question ──> policy ── answer ──> engine carries it out ──> policy.carried_out

A question about an attempt that then fails (no block left) may be asked as often as needed:
answering is pure. Only `carried_out` makes it a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..recorder.decision import DecisionId
from .content import Content
from .inputs import BoolArray, BufferUse, ScrubHow
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


class Policy(Protocol):
    """Answers questions, and hears of the answers that were carried out."""

    def answer(self, question: Question) -> Answer: ...

    def carried_out(self, question: Question, answer: Answer) -> None: ...


class Reference:
    """The right answers."""

    def answer(self, question: Question) -> Answer:
        return reference_answer(question)

    def carried_out(self, question: Question, answer: Answer) -> None:
        pass


def reference_answer(question: Question) -> Answer:
    """The right answer to a question, from the question alone."""
    match question:
        case Admit():
            return (
                question.budget_tokens is None or question.needed_tokens <= question.budget_tokens
            )
        case Share():
            entry = question.index.holding(question.content)
            return Hit(entry.block, entry.key) if entry else None
        case Acquire():
            return question.ref_count + 1
        case Reuse():
            return Taken(question.head, unregister=question.entry is not None)
        case Free():
            return Released(question.ref_count - 1, freed=question.ref_count == 1)
        case Trim():
            return None
        case Scrub():
            return None if question.is_cached else question.how
        case Publish():
            is_whole = question.written == len(question.content.tokens)
            return question.content.key if is_whole else None
        case Fork():
            return question.tokens
        case Copy():
            return question.first_written if question.ref_count > 1 else None
        case Retire():
            return not (question.steps_under_way or question.transfers_under_way)
        case Rollback():
            return question.computed + 1 + question.accepted
        case Load():
            return question.host_block
        case Store():
            return question.block
        case Ready():
            return not question.transfers_under_way
        case Reset():
            return True
        case Staging():
            return next(name for name in question.buffers if name not in question.in_use)
        case Replay():
            return question.built
        case Table():
            return table_of(question.entries, question.seq_len, question.block_size)
        case Slots():
            return slots_of(
                question.table,
                range(question.computed, question.computed + question.query_len),
                question.block_size,
            )
        case PadSlots():
            return (-1,) * question.count
        case Positions():
            return tuple(range(question.computed, question.computed + question.query_len))
        case Mask():
            return visible_keys(question.rows[question.row], question.width)


def table_of(entries: tuple[int | None, ...], seq_len: int, block_size: int) -> tuple[int, ...]:
    """Leading entries that cover `seq_len` tokens; a missing one is -1."""
    blocks = -(-seq_len // block_size)
    padded = entries[:blocks] + (None,) * (blocks - len(entries))
    return tuple(-1 if block is None else block for block in padded)


def slots_of(table: tuple[int, ...], tokens: Iterable[int], block_size: int) -> tuple[int, ...]:
    """slot = table[i // block_size] * block_size + i % block_size; -1 in a hole of the table."""
    return tuple(
        -1 if table[i // block_size] < 0 else table[i // block_size] * block_size + i % block_size
        for i in tokens
    )


def visible_keys(row: RowShape, width: int) -> BoolArray:
    """Causal over the row's own keys, inside its window: bool [query_len, width]."""
    return causal(row.columns, row.seq_len - row.query_len, row.query_len, width, row.window)


def causal(
    columns: tuple[int, ...], first: int, query_len: int, width: int, window: int | None = None
) -> BoolArray:
    """Query q, at position p = first + q, sees columns[max(0, p - window + 1) .. p]; -1 is none."""
    keys = np.asarray(columns, dtype=np.int64)
    visible = np.zeros((query_len, width), dtype=bool)
    for query in range(query_len):
        position = first + query
        seen = keys[max(0, position + 1 - window) if window else 0 : position + 1]
        visible[query, seen[seen >= 0]] = True
    return visible


def same_answer(a: Answer, b: Answer) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    return a == b


def as_choice(question: Question, answer: Answer) -> Any:
    """An answer as `DecisionMade.choice` carries it: plain JSON values.

    A trim names its index, so that folding the event gives the table that the request keeps.
    """
    match answer:
        case Hit():
            return {"block": answer.block, "key": answer.key}
        case Taken():
            return {"block": answer.block, "unregister": answer.unregister}
        case BufferUse():
            return answer._asdict()
        case Released():
            return {"ref_count": answer.ref_count, "freed": answer.freed}
        case _ if isinstance(question, Trim):
            return {"index": question.id.index, "kept": answer}
        case _:
            return answer


BUILDERS = ("table", "slots", "pad", "positions", "mask")
"""Kinds of decision that have no event of their own: three a token would drown the trace."""
