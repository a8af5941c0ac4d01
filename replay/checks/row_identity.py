"""`row-identity` (F11): the arrays of a step agree about which row is whose.

Rows, lengths, tables, tokens and masks are built side by side, and one of them can be shifted
against the others (vLLM 7018, 53919). A sampled token comes from its own request's row. A token
that fits a wrong position id of its own request is the position's fault, and left to that rule.
"""

from __future__ import annotations

from ...recorder.events import Envelope, TokensSampled
from ..state import BuiltMask
from .base import Culprit, Rule, Violation, culprit_of
from .case import Case, Subject
from .causes import taken_subject
from .dangling_table import entry_subject
from .mask_faults import MaskFault, add_shown, mask_culprit, rows_under
from .rows import Row, StepRows


class RowIdentity(Rule):
    slug = "row-identity"
    fault_class = "F11"
    after_kinds = (TokensSampled,)

    def __init__(self) -> None:
        self._awaited: dict[tuple[str, int], tuple[int, Row]] = {}
        """(request, index) -> a token given to the model before it was sampled."""

    def read(self, step: StepRows, case: Case) -> None:
        live = step.live()
        absent = sorted(step.scheduled - {str(row.request) for row in live})
        doubles = _doubles(live)
        is_misnamed = False
        for row in live:
            if not case.is_judged(row.request):
                continue
            if self._is_out_of_place(case, step, row, doubles, absent):
                is_misnamed = True
            else:
                self._judge_row(case, step, row)
        if not is_misnamed:
            self._judge_absent(case, step, absent)
        for group, masks in step.masks.items():
            for mask in masks:
                self._judge_mask_rows(case, step, group, mask)
        for fault in step.mask_faults:
            if fault.like is not None:
                self._judge_mask(case, step, fault, fault.like)

    def after(self, envelope: Envelope, case: Case) -> None:
        event = envelope.event
        assert isinstance(event, TokensSampled)
        self._judge_samples(envelope, event, case)
        for request, token, position in zip(
            event.requests, event.tokens, event.positions, strict=False
        ):
            self._settle_awaited(case, request, position, token)

    # Rows of InputsBuilt.

    def _judge_row(self, case: Case, step: StepRows, row: Row) -> None:
        if row.has_wrong_count:
            self._report_row(
                case, step, row, "counts", row.true_count, row.query_len,
                f"{row.request} is given {row.query_len} tokens, {row.true_count} were scheduled",
            )  # fmt: skip
            return
        if self._is_shifted(case, step, row):
            return
        others = step.beside(row)
        if row.length_fault == "row-identity":
            same = [o for o in others if row.seq_len in (o.true_len, o.seq_len)]
            self._report_row(
                case, step, row, "lengths", row.true_len, row.seq_len,
                f"{row.request} is given the length {row.seq_len} of {same[0].request}",
                source=same[0].request,
            )  # fmt: skip
        self._judge_table(case, step, row, others)
        self._judge_tokens(case, step, row, others)

    def _is_shifted(self, case: Case, step: StepRows, row: Row) -> bool:
        """A wrong count shifts all rows behind it, which are no faults of their own."""
        if row.true_start in (None, row.start):
            return False
        wrong = next((r for r in step.live() if r.build is row.build and r.has_wrong_count), None)
        known = case.cause(("row", row.group, wrong.request, step.step)) if wrong else None
        if known is not None:
            case.causes.setdefault(("row", row.group, row.request, step.step), known)
        return known is not None

    def _is_out_of_place(
        self, case: Case, step: StepRows, row: Row, doubles: list[Row], absent: list[str]
    ) -> bool:
        """The request has another row in this build, or stands where a scheduled one should."""
        if absent and row.request not in step.scheduled:
            self._report_row(
                case, step, row, "requests", absent[0], row.request,
                f"{row.request} was not scheduled and has a row, {absent[0]} was and has none",
            )  # fmt: skip
            return True
        if row not in doubles:
            return False
        self._report_row(
            case, step, row, "requests", absent[0] if absent else None, row.request,
            f"{row.request} stands in more than one row of one step",
        )  # fmt: skip
        return True

    def _judge_absent(self, case: Case, step: StepRows, absent: list[str]) -> None:
        """Scheduled, and not among the rows that the device is given."""
        builds = case.state.steps[step.step].builds
        given = {name for build in builds for name in build.event.requests}
        for request in absent:
            known = case.state.requests.get(request)
            if request in given or known is None or known.status != "running":
                continue  # finished or preempted since it was scheduled
            culprit = Culprit(builds[-1].seq, step.step, "InputsBuilt", None, request)
            self._report(
                case, "absent", culprit, builds[-1].seq, step.step,
                f"{request} was scheduled and has no row", ("absent", request, step.step),
                expected=request, victim=request,
            )  # fmt: skip

    def _judge_table(self, case: Case, step: StepRows, row: Row, others: list[Row]) -> None:
        """Wrong leading entries that are another row's, unless releases explain them all."""
        bad = [
            b
            for b in row.bad_entries
            if b.block is not None
            and b.kind != "past-end"
            and case.cause(taken_subject(row.group, str(row.request), b.block)) is None
        ]
        if not bad or all(b.release or b.kind == "stale" for b in bad):
            return
        end = bad[0].at + 1
        for other in others:
            theirs = case.held_tables.get((other.group, str(other.request)), [])
            if len(theirs) >= end and list(row.table[:end]) == theirs[:end]:
                mine = case.held_tables.get((row.group, str(row.request)), [])
                self._report_row(
                    case, step, row, "tables", mine[: len(row.table)], list(row.table),
                    f"{row.request} is given the block table of {other.request}",
                    *(entry_subject(row, b) for b in row.bad_entries),
                    source=other.request, block=bad[0].block,
                )  # fmt: skip
                return

    def _judge_tokens(self, case: Case, step: StepRows, row: Row, others: list[Row]) -> None:
        given = row.tokens
        if given is None:
            return
        request = str(row.request)
        own = case.state.requests[request].tokens
        known = own[row.computed : row.computed + row.query_len]
        if given[: len(known)] != known:
            self._explain_tokens(case, step, row, others, own)
        elif not known and given and given[0] >= 0 and row.length_fault is None:
            self._awaited[request, row.computed] = (given[0], row)

    def _explain_tokens(
        self, case: Case, step: StepRows, row: Row, others: list[Row], own: tuple[int, ...]
    ) -> None:
        for j, (true, token) in enumerate(zip(row.queries, row.tokens or (), strict=False)):
            if true >= len(own) or token == own[true] or token < 0:
                continue
            sampled = case.cause(("sampled", row.request, true))
            if sampled is not None:
                case.causes.setdefault(("row", row.group, row.request, step.step), sampled)
                return
            given = row.positions[j] if j < len(row.positions) else true
            if given != true and 0 <= given < len(own) and token == own[given]:
                continue
            source = next(
                (o.request for o in others if o.tokens == row.tokens or token in (o.tokens or ())),
                None,
            )
            self._report_row(
                case, step, row, "tokens", own[true], token,
                f"token {true} of {row.request} is {own[true]}, the model is given {token}",
                source=source, query=row.start + j,
            )  # fmt: skip
            return

    def _settle_awaited(self, case: Case, request: str, position: int, token: int) -> None:
        """A step in flight was given this token before it was known."""
        given, row = self._awaited.pop((request, position), (token, None))
        is_blamed = case.cause(("sampled", request, position)) is not None
        if row is not None and given != token and not is_blamed:
            self._report(
                case, "tokens", row.culprit(), row.build.seq, row.step,
                f"token {position} of {request} is {token}, the model was given {given}",
                ("row", row.group, request, row.step),
                row=row.number, query=row.start, expected=token, actual=given, victim=request,
            )  # fmt: skip

    def _report_row(
        self,
        case: Case,
        step: StepRows,
        row: Row,
        variant: str,
        expected: object,
        actual: object,
        explanation: str,
        *subjects: Subject,
        **fields: object,
    ) -> None:
        self._report(
            case, variant, row.culprit(), row.build.seq, step.step, explanation,
            ("row", row.group, row.request, step.step), *subjects,
            row=row.number, expected=expected, actual=actual, victim=row.request, **fields,
        )  # fmt: skip

    # Masks.

    def _judge_mask_rows(self, case: Case, step: StepRows, group: int, mask: BuiltMask) -> None:
        """The mask's rows are the build's, but for pads at the end."""
        rows = rows_under(step, group, mask.event)
        built = [(row.request, row.query_len) for row in rows]
        masked: list[tuple[str | None, int | None]] = [
            *zip(mask.event.requests, mask.event.query_lens, strict=False)
        ]
        masked += [(None, None)] * (len(rows) - len(masked))
        absent = (("absent", name, step.step) for name in mask.event.requests)
        if case.cause(*absent):
            return  # the build misses a row
        for number, (row, own, given) in enumerate(zip(rows, built, masked, strict=False)):
            if case.cause(("row", group, row.request, step.step)):
                continue
            if own != given and row.request is not None:
                is_request = own[0] != given[0]
                self._report(
                    case, "mask-rows",
                    mask_culprit(mask, step.step, row),
                    mask.seq, step.step,
                    f"row {number} is {own[0]} with {own[1]} queries in the inputs, "
                    f"and {given[0]} with {given[1]} in the mask",
                    ("mask-row", mask.seq, number),
                    row=number, victim=row.request, source=given[0] if is_request else None,
                    expected=own[0] if is_request else own[1],
                    actual=given[0] if is_request else given[1],
                )  # fmt: skip

    def _judge_mask(self, case: Case, step: StepRows, fault: MaskFault, like: Row) -> None:
        violation = self._report(
            case, "mask-row", fault.culprit, fault.mask.seq, step.step,
            f"row {fault.row.number} of {fault.row.request} has the mask of row {like.number}, "
            f"{like.request}",
            ("mask-row", fault.mask.seq, fault.row.number),
            row=fault.row.number, query=fault.query, key=fault.key, expected=fault.expected,
            actual=fault.actual, victim=fault.row.request, source=like.request,
        )  # fmt: skip
        add_shown(case, fault, violation)

    # Samples.

    def _judge_samples(self, envelope: Envelope, event: TokensSampled, case: Case) -> None:
        opened = case.step_rows(envelope.step)
        if opened is None:
            return
        rows: dict[int, list[Row]] = {}
        for row in opened.rows.rows:
            rows.setdefault(row.number, []).append(row)
        for request, token, number, position in zip(
            event.requests, event.tokens, event.rows, event.positions, strict=False
        ):
            found = rows.get(number, [])
            if any(row.request == request for row in found):
                continue
            if any(_gives_logits_for(case, row, request, position) for row in found):
                continue
            if case.has_dropped and request not in case.state.requests:
                continue  # whose further sample it is was dropped
            known = case.cause(
                ("absent", request, envelope.step),
                *(("row", row.group, row.request, envelope.step) for row in found),
            )
            sampled = ("sampled", request, _index_of(case, request, position))
            if known is not None:  # the row has the wrong name: the sample follows it
                known.shows_foreign_data |= bool(found)
                case.causes.setdefault(sampled, known)
                continue
            source = found[0].request if found else None
            self._report(
                case, "sample", culprit_of(envelope, request), envelope.seq, envelope.step,
                f"token {token} of {request} was sampled from row {number}, which is {source}",
                sampled,
                row=number, victim=request, source=source, expected=request, actual=source,
            ).shows_foreign_data = number in rows  # fmt: skip

    def _report(
        self,
        case: Case,
        variant: str,
        culprit: Culprit,
        seq: int,
        step: int,
        explanation: str,
        *subjects: Subject,
        **fields: object,
    ) -> Violation:
        violation = Violation(
            check=self.slug,
            fault_class=self.fault_class,
            variant=variant,
            culprit=culprit,
            seq=seq,
            step=step,
            explanation=explanation,
            **fields,  # pyright: ignore[reportArgumentType]
        )
        return case.report(violation, *subjects)


def _doubles(live: list[Row]) -> list[Row]:
    """Of the rows of one request in one build all but the one that is right, or the first."""
    rows: dict[tuple[int, str | None], list[Row]] = {}
    for row in live:
        rows.setdefault((row.build.seq, row.request), []).append(row)
    doubles: list[Row] = []
    for same in rows.values():
        right = next((r for r in same if r.seq_len == r.true_len and not r.bad_entries), same[0])
        doubles += [row for row in same if row is not right]
    return doubles


def _index_of(case: Case, request: str, position: int) -> int:
    """Where a token that was just sampled stands in its request, whatever position it names."""
    known = case.state.requests.get(request)
    return position if known is None else min(position, len(known.tokens) - 1)


def _gives_logits_for(case: Case, row: Row, request: str, position: int) -> bool:
    """Whether the row is a parent's that computed the very tokens that its fork took over: one
    row gives the logits for all samples of a prompt."""
    child = case.state.requests.get(request)
    parent = case.state.requests.get(row.request) if row.request is not None else None
    return (
        child is not None
        and parent is not None
        and child.added.parent == row.request
        and position == row.seq_len <= child.taken_over
        and child.tokens[:position] == parent.tokens[:position]
    )
