"""What every rule is made of: hooks around the fold, violations, culprits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...recorder.events import Envelope, Event

if TYPE_CHECKING:
    from .case import Case
    from .rows import StepRows


class Culprit(NamedTuple):
    """The event that carries a wrong decision out, as far as a finding needs to know it."""

    seq: int
    step: int
    kind: str
    decision: str | None
    request: str | None


def culprit_of(
    envelope: Envelope, request: str | None = None, decision: str | None = None
) -> Culprit:
    """`request` and `decision` where the event itself doesn't name one."""
    event: Any = envelope.event
    who = request if request is not None else getattr(event, "request", None)
    return Culprit(envelope.seq, envelope.step, envelope.kind, event.decision or decision, who)


@dataclass(slots=True, eq=False, kw_only=True)
class Violation:
    """A broken rule before blame is settled: mutable, and compared by identity.

    `variant` tells wrong decisions of one class apart (a count that is wrong, a block never
    released): the same variant later in the run is the same wrong decision made again.
    """

    check: str
    fault_class: str | None
    variant: str
    culprit: Culprit
    seq: int
    step: int
    explanation: str
    block: int | None = None
    slot: int | None = None
    row: int | None = None
    query: int | None = None
    key: int | None = None
    expected: Any = None
    actual: Any = None
    victim: str | None = None
    source: str | None = None
    also_affected: list[str] = field(default_factory=list)
    cause: Violation | None = None
    """For a foreign read: the violation that it follows from."""
    shows_foreign_data: bool = False
    is_reported: bool = True
    """False for a cause whose own rule reports it elsewhere or not at all."""


class Rule:
    """One rule of the contract. The kinds listed are those whose hooks are called.

    A rule compares first and explains on mismatch; it reports through `case.report`, and leaves
    alone what another violation already accounts for.
    """

    slug: ClassVar[str]
    fault_class: ClassVar[str | None]
    before_kinds: ClassVar[tuple[type[Event], ...]] = ()
    after_kinds: ClassVar[tuple[type[Event], ...]] = ()

    def before(self, envelope: Envelope, case: Case) -> None:
        """Called before the event is folded."""

    def after(self, envelope: Envelope, case: Case) -> None:
        """Called after the event was folded."""

    def take_up(self, mark: Envelope, case: Case) -> None:
        """Called where a ring begins, once the state that `mark` bears is there."""

    def read(self, step: StepRows, case: Case) -> None:
        """Called when a step is dispatched: its rows read now."""

    def forget(self, case: Case) -> None:
        """Let go of what is about blocks, keys and requests that the case no longer knows."""

    def end(self, case: Case) -> None:
        """Called after the last event."""
