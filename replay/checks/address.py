"""`address` (F08): a token goes to the slot that its own table and its true index say.

slot = table[p // block_size] x block_size + p mod block_size, with p = computed + j and the built
table (TGI 2711). -1 writes nowhere. A slot that fits a wrong position id is the position's fault,
and left to that rule.
"""

from __future__ import annotations

from ...recorder.events import Envelope, SlotsWritten
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, OpenStep, Subject
from .rows import Row, StepRows


class Address(Rule):
    slug = "address"
    fault_class = "F08"
    after_kinds = (SlotsWritten,)

    def read(self, step: StepRows, case: Case) -> None:
        for row in step.live():
            if row.has_wrong_count or not case.is_judged(row.request):
                continue
            if case.cause(("row", row.group, row.request, step.step)):
                continue
            size = case.state.pool(row.group).block_size
            if size > 0:
                self._judge_row(case, step, row, size)

    def _judge_row(self, case: Case, step: StepRows, row: Row, size: int) -> None:
        reported: Violation | None = None
        bad = {entry.at for entry in row.bad_entries}
        for j, (true, slot) in enumerate(zip(row.queries, row.slots, strict=False)):
            right = row.slot_at(true, size)
            if slot in (-1, right) or right is None or true // size in bad:
                continue
            given = row.positions[j] if j < len(row.positions) else true
            if given != true and slot == row.slot_at(given, size):
                continue
            misplaced = misplaced_subject(row.group, str(row.request), true)
            if reported is not None:
                case.causes.setdefault(misplaced, reported)
                continue
            reported = self._report(
                case, step.step, row.build.seq, row.culprit("slots"), row.group, str(row.request),
                slot, right, size, row.number, true,
            )  # fmt: skip

    def after(self, envelope: Envelope, case: Case) -> None:
        """What was written, against the mapping that the device was given."""
        event = envelope.event
        assert isinstance(event, SlotsWritten)
        group = event.group or 0
        size = case.state.pool(group).block_size
        opened = case.step_rows(envelope.step)
        if event.write not in ("prefill", "decode", "draft") or opened is None or size < 1:
            return
        tokens = event.tokens or (None,) * len(event.slots)
        for request, position, token, slot in zip(
            event.requests, event.positions, tokens, event.slots, strict=False
        ):
            if request is None or slot < 0 or case.cause(("row", group, request, envelope.step)):
                continue
            right = opened.slot_mapped(group, request, position)
            if right in (None, slot) or self._is_misnumbered(
                case, opened, group, request, position, token
            ):
                continue
            self._report(
                case, envelope.step, envelope.seq, culprit_of(envelope, request), group,
                request, slot, right, size, None, position,
            )  # fmt: skip

    def _is_misnumbered(
        self,
        case: Case,
        opened: OpenStep,
        group: int,
        request: str,
        position: int,
        token: int | None,
    ) -> bool:
        """The position is wrong, not the slot: it was given so, or another token is there."""
        row = next(
            (r for r in opened.rows.live() if r.request == request and r.group == group), None
        )
        if row is not None and row.positions != tuple(row.queries):
            return True
        known = case.state.requests.get(request)
        own = known.tokens[position : position + 1] if known is not None and position >= 0 else ()
        return token is not None and own not in ((), (token,))

    def _report(
        self,
        case: Case,
        step: int,
        seq: int,
        culprit: Culprit,
        group: int,
        request: str,
        slot: int,
        right: int,
        size: int,
        row: int | None,
        position: int,
    ) -> Violation:
        holders = case.state.pool(group).block(slot // size).holders
        others = [h.request for h in holders if h.request != request]
        return case.report(
            Violation(
                check=self.slug,
                fault_class=self.fault_class,
                variant="slot" if culprit.kind == "InputsBuilt" else "written-elsewhere",
                culprit=culprit,
                seq=seq,
                step=step,
                explanation=(
                    f"token {position} of {request} goes to slot {slot}; "
                    f"its table says slot {right}"
                ),
                block=slot // size,
                slot=slot,
                row=row,
                expected=right,
                actual=slot,
                victim=others[0] if others else request,
                source=request if others else None,
            ),
            ("address", group, step, request),
            misplaced_subject(group, request, position),
        )


def misplaced_subject(group: int, request: str, position: int) -> Subject:
    """A token that went elsewhere, and so is not where it is read."""
    return ("misplaced", group, request, position)
