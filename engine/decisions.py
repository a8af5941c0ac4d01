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

from typing import Any, Protocol

import numpy as np

from .geometry import slots_of, table_of, visible_keys
from .inputs import BufferUse
from .questions import (
    Acquire,
    Admit,
    Answer,
    Copy,
    Fork,
    Free,
    Hit,
    Load,
    Mask,
    PadSlots,
    Positions,
    Publish,
    Question,
    Ready,
    Released,
    Replay,
    Reset,
    Retire,
    Reuse,
    Rollback,
    Scrub,
    Share,
    Slots,
    Staging,
    Store,
    Table,
    Taken,
    Trim,
)


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
            return table_of(question.entries, question.seq_len, question.block_size, question.first)
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
