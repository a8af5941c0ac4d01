"""What a completed step means for its requests: tokens, published blocks, ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..recorder.events import DraftVerified, TokensSampled
from .flight import Flight
from .journal import Journal
from .outcome import Chosen, by_row, chosen_tokens, verify
from .pieces import Pieces
from .pipeline import Pipeline
from .questions import Retire, Rollback
from .request import FinishReason, Request, Status
from .rows import Row
from .runner import StepOutput
from .scheduler import Scheduler


class Accountant:
    """Settles steps, and ends requests without taking blocks from under a step or a transfer."""

    def __init__(
        self,
        journal: Journal,
        scheduler: Scheduler,
        pipeline: Pipeline,
        requests: Mapping[str, Request],
        eos_tokens: frozenset[int],
        pieces: Pieces,
    ) -> None:
        self._journal = journal
        self._scheduler = scheduler
        self._pipeline = pipeline
        self._requests = requests
        self._eos = eos_tokens
        self._pieces = pieces
        self.num_finished = 0
        """Requests that have ended."""
        self._retiring: list[Request] = []
        """Ended while host memory was loaded for them."""

    def settle(self, flight: Flight) -> None:
        """The step completed: account for what came of it, then release what waited for it."""
        assert flight.result is not None, "only steps that were started complete"
        error = flight.result.exception()
        if error is None:
            self._account(flight, flight.result.result())
        else:
            self._fail(flight, error)
        for request in flight.retiring:
            self._scheduler.release(request)

    def finish(self, request: Request, reason: FinishReason, message: str | None = None) -> None:
        """Ends a request; its blocks stay as long as a step or a transfer under way uses them."""
        flights = self._pipeline.using(request)
        transfers = self._scheduler.host.under_way(request)
        release = True
        if flights or transfers:
            id = self._journal.id("retire", request, 0)
            steps = tuple(flight.step for flight in flights)
            release = self._journal.decide(Retire(id, steps, transfers))
        self.num_finished += 1
        self._scheduler.finish(request, reason, release=release, message=message)
        if not release:
            (flights[-1].retiring if flights else self._retiring).append(request)

    def finish_transfers(self, *, wait: bool = False) -> None:
        """Transfers that end now (with `wait`, all of them), and the blocks of requests that
        ended before them."""
        host = self._scheduler.host
        if wait:
            host.finish_now()
        else:
            host.finish_due()
        for request in [r for r in self._retiring if not host.under_way(r)]:
            self._retiring.remove(request)
            self._scheduler.release(request)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        """The step raised: its requests end, with the reason; the others go on."""
        if not isinstance(error, Exception):
            raise error
        reason = f"step {flight.step} raised {type(error).__name__}: {error}"
        lost = [request for row in flight.rows for request in (row.request, *row.forks)]
        for request in (*lost, *self._pipeline.forks_of(lost)):
            if request.status is not Status.FINISHED:
                request.error = reason
                self.finish(request, "error", reason)

    def _account(self, flight: Flight, output: StepOutput) -> None:
        """Tokens are appended, full blocks published, requests that are done finished."""
        live = [row for row in flight.rows if row.request.status is not Status.FINISHED]
        self._append(flight, output)
        self._scheduler.publish(live)
        for row in flight.rows:
            self._finish_if_done(row.request)
            for fork in row.forks:
                self._finish_if_done(fork)

    def _finish_if_done(self, request: Request) -> None:
        prompt, sampled = request.prompt, request.num_sampled
        if not sampled or request.status is Status.FINISHED:
            return
        if not prompt.ignore_eos and request.tokens[-1] in self._eos:
            self.finish(request, "eos")
        elif sampled >= prompt.max_new_tokens:
            self.finish(request, "length")

    def _append(self, flight: Flight, output: StepOutput) -> None:
        requests, taken, positions = self._requests, list[Chosen](), list[int]()
        for chosen in self._chosen(flight, output):
            request = requests[chosen.sample.request]
            if request.status is not Status.FINISHED:
                taken.append(chosen)
                positions.append(len(request.tokens))
                request.tokens.append(chosen.token)
        if taken and self._journal.listening:
            self._journal.emit_for(flight.step, _sampled(taken, positions))
            self._pieces.define(chosen.token for chosen in taken)

    def _chosen(self, flight: Flight, output: StepOutput) -> list[Chosen]:
        """What the step gives, in the order of its rows; of drafts, what is accepted."""
        chosen = chosen_tokens(flight.inputs.samples, output)
        if not any(row.drafts for row in flight.rows):
            return chosen
        taken: list[Chosen] = []
        for number, of_row in by_row(chosen).items():
            row = flight.row_at(number)
            taken += self._verified(flight.step, row, of_row) if row.drafts else of_row
        return taken

    def _verified(self, step: int, row: Row, chosen: list[Chosen]) -> tuple[Chosen, ...]:
        """What a row with drafts gives; the request's count goes back behind those rejected."""
        request = row.request
        verified = verify(row, chosen, self._eos)
        if self._journal.listening:
            self._journal.emit_for(
                step,
                DraftVerified(
                    request=request.name,
                    proposed=row.drafts,
                    first=row.computed + 1,
                    accepted=verified.accepted,
                ),
            )
        id = self._journal.id("rollback", request, row.decision_index)
        request.computed = self._journal.decide(
            Rollback(id, row.computed, row.drafts, verified.accepted)
        )
        return verified.taken


def _sampled(taken: Sequence[Chosen], positions: Sequence[int]) -> TokensSampled:
    """`positions`: the index that each token takes in its request."""
    return TokensSampled(
        requests=tuple(chosen.sample.request for chosen in taken),
        tokens=tuple(chosen.token for chosen in taken),
        positions=tuple(positions),
        rows=tuple(chosen.sample.row for chosen in taken),
        logprobs=_all_of(chosen.logprob for chosen in taken),
        margins=_all_of(chosen.margin for chosen in taken),
    )


def _all_of(values: Iterable[float | None]) -> tuple[float, ...] | None:
    known = [value for value in values if value is not None]
    return tuple(known) or None
