"""Who waits and who runs."""

from __future__ import annotations

from bisect import insort

from ..recorder.events import RequestFinished, RequestForked, RequestPreempted
from .journal import Journal
from .request import FinishReason, Request, Status


class Queues:
    """Waiting requests in the order of priority and arrival, running ones in that of admission.

    Every change of a request's status is here, on adjacent lines with its event. (Admission has
    none of its own: it is the decision `admit`, and the request's row in `StepScheduled`.)
    """

    def __init__(self, journal: Journal) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._journal = journal

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=_turn)

    def last(self) -> Request:
        """Of the lowest urgency, the one admitted last; not one that host memory is loaded for."""
        running = [request for request in self.running if request.status is Status.RUNNING]
        lowest = max(request.prompt.priority for request in running)
        return next(r for r in reversed(running) if r.prompt.priority == lowest)

    def awaits_memory_behind(self, request: Request) -> bool:
        """Whether host memory is loaded for one that would be preempted before this request."""
        ordered = sorted(self.running, key=lambda other: other.prompt.priority)
        behind = ordered[ordered.index(request) + 1 :]
        return any(other.status is Status.LOADING for other in behind)

    def admit(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        request.admissions += 1
        request.prefill_until = request.length

    def load(self, request: Request) -> None:
        """An admitted request waits for host memory."""
        request.status = Status.LOADING

    def ready(self, request: Request) -> None:
        """Host memory has been loaded for it."""
        request.status = Status.RUNNING

    def fork(self, child: Request, parent: Request, tokens: int, decision: str) -> None:
        self.running.append(child)
        child.status = Status.RUNNING
        child.admissions += 1
        child.computed = child.prefill_until = tokens
        if self._journal.listening:
            self._journal.emit(
                RequestForked(
                    request=child.name, parent=parent.name, tokens=tokens, decision=decision
                )
            )

    def preempt(self, request: Request, reason: str) -> None:
        self.running.remove(request)
        self.add(request)
        request.status = Status.PREEMPTED
        request.computed = 0
        if self._journal.listening:
            self._journal.emit(RequestPreempted(request=request.name, reason=reason))

    def finish(self, request: Request, reason: FinishReason, message: str | None) -> None:
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        if self._journal.listening:
            self._journal.emit(
                RequestFinished(request=request.name, reason=reason, message=message)
            )


def _turn(request: Request) -> tuple[int, int]:
    """Waiting requests come in this order."""
    return request.prompt.priority, request.arrival
