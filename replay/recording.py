"""What a trace says of its own inputs: all that a re-execution needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..engine.config import EngineConfig
from ..engine.epochs import EpochChange
from ..engine.request import Prompt
from ..recorder.errors import BadInput
from ..recorder.events import (
    AbortRequested,
    Envelope,
    EpochChanged,
    PiecesDefined,
    RequestAdded,
    RequestFinished,
    RunStarted,
    SpanDropped,
    TokensSampled,
)

OUR_ENGINE = "kvrewind"

OWN_ENDS = ("completed", "did-not-finish")
"""`RunEnded.reason` where our engine came to an end by itself; any other came from outside."""

IN_SAMPLING = ("ignore_eos", "temperature", "n", "top_k", "top_p", "pin", "retention")
"""Fields of a prompt that `RequestAdded.sampling` carries, where they aren't the default."""


class NotReexecutable(BadInput):
    """The trace lacks what a re-execution needs, or another engine wrote it."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody asked for the end of a request, in this step."""

    step: int
    request: str


@dataclass(frozen=True, slots=True)
class Recording:
    """The inputs of a recorded run, each with its step, and the tokens that it sampled.

    `prompts` are what callers handed in: the further samples of a prompt (its children) are made
    from it again, and stand in `children` by the name of their parent.
    """

    header: RunStarted
    config: EngineConfig
    prompts: tuple[Prompt, ...]
    children: dict[str, tuple[Prompt, ...]]
    aborts: tuple[Abort, ...]
    """In the order in which they were asked for."""
    epochs: tuple[EpochChange, ...]
    sampled: dict[str, tuple[int, ...]]
    steps: int
    has_pieces: bool
    """Whether the trace spells its tokens (a redacted one says only where it would)."""
    ended_by: frozenset[int] = frozenset()
    """The last tokens of requests that came to their own end."""
    has_gaps: bool = False
    """Whether events were dropped: in a ring, or where the disk was too slow."""

    @classmethod
    def of(cls, envelopes: Iterable[Envelope]) -> Recording:
        """Raises `NotReexecutable` when there is no header, or another engine's."""
        header: RunStarted | None = None
        added: dict[str, tuple[int, RequestAdded]] = {}
        aborts: list[Abort] = []
        epochs: list[EpochChange] = []
        sampled: dict[str, list[int]] = {}
        ended_by: set[int] = set()
        steps = 0
        ranks: set[int] = set()
        has_pieces = has_gaps = False
        for envelope in envelopes:
            steps = max(steps, envelope.step)
            ranks.add(envelope.rank)
            match envelope.event:
                case RunStarted() as event:
                    header = event
                case PiecesDefined():
                    has_pieces = True
                case RequestAdded() as event:
                    added[event.request] = (envelope.step, event)
                case EpochChanged(what=what, epoch=epoch, adapter=adapter):
                    epochs.append(EpochChange(what, epoch, adapter, envelope.step))
                case AbortRequested() as event:
                    aborts.append(Abort(envelope.step, event.request))
                case TokensSampled() as event:
                    for request, token in zip(event.requests, event.tokens, strict=True):
                        sampled.setdefault(request, []).append(token)
                case SpanDropped():
                    has_gaps = True
                case RequestFinished(request=request, reason="eos"):
                    ended_by.update(sampled.get(request, ())[-1:])
        if header is None:
            raise NotReexecutable("the trace has no RunStarted, so nothing can be re-executed.")
        if len(ranks) > 1:
            raise NotReexecutable(
                f"the trace was merged from {len(ranks)} ranks, each a run of its own; "
                "re-execute the trace of one of them."
            )
        if header.engine != OUR_ENGINE:
            raise NotReexecutable(
                f"the trace was written by {header.engine}, which kvrewind can't re-execute; "
                "`kvrewind check` judges it as it stands."
            )
        children: dict[str, list[Prompt]] = {}
        for step, event in added.values():
            if event.parent is not None:
                children.setdefault(event.parent, []).append(_prompt(event, step))
        return cls(
            header=header,
            config=EngineConfig.from_recorded(header.config),
            prompts=tuple(
                _prompt(event, step) for step, event in added.values() if event.parent is None
            ),
            children={parent: tuple(prompts) for parent, prompts in children.items()},
            aborts=tuple(aborts),
            epochs=tuple(epochs),
            sampled={name: tuple(tokens) for name, tokens in sampled.items()},
            steps=steps,
            has_pieces=has_pieces,
            ended_by=frozenset(ended_by),
            has_gaps=has_gaps,
        )

    def alone(self, request: str) -> Recording:
        """The same, with one request in it: one sample, even where there were several.

        Raises `BadInput` when the trace has no request of that name.
        """
        all_of = [*self.prompts, *(p for prompts in self.children.values() for p in prompts)]
        chosen = next((prompt for prompt in all_of if prompt.request == request), None)
        if chosen is None:
            known = ", ".join(prompt.request for prompt in all_of)
            raise BadInput(f"the trace has no request {request!r}; it has {known}.")
        return replace(
            self,
            prompts=(replace(chosen, n=1),),
            children={},
            aborts=tuple(abort for abort in self.aborts if abort.request == request),
        )


def _prompt(event: RequestAdded, step: int) -> Prompt:
    """`RequestAdded.sampling` has what the event has no field for, as `Prompt.sampling` wrote it.
    A prompt that arrived in seconds arrives in the step in which it was taken in."""
    sampling = event.sampling or {}
    told = {name: sampling[name] for name in IN_SAMPLING if name in sampling}
    return Prompt(
        request=event.request,
        prompt_tokens=event.prompt_tokens,
        max_new_tokens=event.max_new_tokens,
        tenant=event.tenant,
        session=event.session,
        external_id=event.external_id,
        passphrase=event.passphrase,
        adapter=event.adapter,
        extra_keys=tuple((position, key) for position, key in event.extra_keys or ()),
        priority=event.priority or 0,
        arrival_step=step,
        **told,
    )
