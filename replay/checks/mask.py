"""`mask` (F14): query q sees key k exactly when both are of one sequence, k <= q, and k is inside
the window.

A mask also has to mask: its fill must leave no weight (-inf, or at most -1e4), booleans can't be
added, and it is applied before softmax, since afterwards the masked keys have already had their
share of the weights (transformers 38094, 46634). A row that was given another row's mask as a
whole is `row-identity`.
"""

from __future__ import annotations

from .base import Rule, Violation
from .case import Case
from .mask_faults import MaskFault, add_shown
from .rows import StepRows


class Mask(Rule):
    slug = "mask"
    fault_class = "F14"

    def read(self, step: StepRows, case: Case) -> None:
        for fault in step.mask_faults:
            if fault.like is None:
                add_shown(case, fault, self._report(case, step, fault))

    def _report(self, case: Case, step: StepRows, fault: MaskFault) -> Violation:
        about = (
            ("mask-row", fault.mask.seq, fault.row.number)
            if fault.reason == "bits"
            else ("mask", fault.mask.seq, fault.reason)
        )
        violation = Violation(
            check=self.slug,
            fault_class=self.fault_class,
            variant=fault.reason,
            culprit=fault.culprit,
            seq=fault.mask.seq,
            step=step.step,
            explanation=_explain(fault),
            slot=fault.shown[0].slot if fault.shown else None,
            row=fault.row.number,
            query=fault.query,
            key=fault.key,
            expected=fault.expected,
            actual=fault.actual,
            victim=fault.row.request,
        )
        return case.report(violation, about)


def _explain(fault: MaskFault) -> str:
    if fault.reason == "bits":
        verb = "sees" if fault.actual else "does not see"
        return f"query {fault.query} of {fault.row.request} {verb} key {fault.key} of the mask"
    if fault.reason == "shape":
        return f"the mask's {fault.actual} bytes are not {fault.expected}"
    if fault.reason == "dtype":
        return "a boolean mask that is added to the scores hides nothing"
    if fault.reason == "fill":
        return f"a fill of {fault.actual} leaves hidden keys some weight"
    if fault.reason == "after-softmax":
        return "the mask is applied after softmax, when hidden keys have had their share"
    return f"the mask's window is {fault.actual}, the group's is {fault.expected}"
