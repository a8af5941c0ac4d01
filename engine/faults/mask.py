"""Faults of the attention mask, on the reference path (one explicit rows x slots mask)."""

from __future__ import annotations

import numpy as np

from ..geometry import causal, visible_keys
from ..questions import Answer, Mask, Question
from .base import Fault

_REFERENCE = {"attention": "reference"}


class MaskBroadcastWrongAxis(Fault):
    """The vector of valid keys is broadcast over the rows: causal order stays, ownership is lost.

    Each query sees the slots of every request of the step, up to its own position.
    """

    def answer(self, question: Question, right: Answer) -> Answer:
        if not isinstance(question, Mask):
            return right
        row = question.rows[question.row]
        first = row.seq_len - row.query_len
        seen = [
            causal(other.columns, first, row.query_len, question.width, row.window)
            for other in question.rows
        ]
        return np.logical_or.reduce(seen)


class MaskBatchIndex(Fault):
    """Row i of a decode batch is built from row i + 1."""

    def answer(self, question: Question, right: Answer) -> Answer:
        if not isinstance(question, Mask) or question.rows[question.row].phase != "decode":
            return right
        shape = question.rows[question.row].query_len  # no pad's, and none with more drafts
        decoding = [
            i
            for i, row in enumerate(question.rows)
            if row.phase == "decode" and row.request is not None and row.query_len == shape
        ]
        other = decoding[(decoding.index(question.row) + 1) % len(decoding)]
        return visible_keys(question.rows[other], question.width)


MASK_BROADCAST_WRONG_AXIS = MaskBroadcastWrongAxis(
    name="mask-broadcast-wrong-axis",
    fault_class="F14",
    check="mask",
    outcome="leaks",
    what="the vector of valid keys is broadcast over the rows instead of the keys",
    seen_in="transformers 38094",
    needs="the reference path; two requests in a step",
    implies=_REFERENCE,
)

MASK_BATCH_INDEX = MaskBatchIndex(
    name="mask-batch-index",
    fault_class="F11",
    check="row-identity",
    outcome="leaks",
    what="the mask of a decode row is built from the next row",
    seen_in="transformers 46634",
    needs="the reference path; two decode rows in a step",
    implies=_REFERENCE,
)
