"""What a trace says of its own inputs: all that a re-execution needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..engine.config import EngineConfig
from ..engine.request import Prompt
from ..recorder.errors import BadInput
from ..recorder.events import (
    AbortRequested,
    Envelope,
    PiecesDefined,
    RequestAdded,
    RunStarted,
    TokensSampled,
)

OUR_ENGINE = "kvrewind"


class NotReexecutable(BadInput):
    """The trace lacks what a re-execution needs, or another engine wrote it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The inputs of a recorded run, each with its step, and the tokens that it sampled."""

    header: RunStarted
    config: EngineConfig
    prompts: tuple[Prompt, ...]
    sampled: dict[str, tuple[int, ...]]
    steps: int
    has_pieces: bool
    """Whether the trace spells its tokens; a redacted one doesn't."""

    @classmethod
    def of(cls, envelopes: Iterable[Envelope]) -> Recording:
        """Raises `NotReexecutable` when there is no header, or another engine's."""
        header: RunStarted | None = None
        added: dict[str, tuple[int, RequestAdded]] = {}
        aborts: dict[str, int] = {}
        sampled: dict[str, list[int]] = {}
        steps = 0
        has_pieces = False
        for envelope in envelopes:
            steps = max(steps, envelope.step)
            match envelope.event:
                case RunStarted() as event:
                    header = event
                case PiecesDefined():
                    has_pieces = True
                case RequestAdded() as event:
                    added[event.request] = (envelope.step, event)
                case AbortRequested() as event:
                    aborts[event.request] = envelope.step
                case TokensSampled() as event:
                    for request, token in zip(event.requests, event.tokens, strict=True):
                        sampled.setdefault(request, []).append(token)
        if header is None:
            raise NotReexecutable("the trace has no RunStarted, so nothing can be re-executed.")
        if header.engine != OUR_ENGINE:
            raise NotReexecutable(
                f"the trace was written by {header.engine}, which kvrewind can't re-execute; "
                "`kvrewind check` judges it as it stands."
            )
        return cls(
            header=header,
            config=EngineConfig.from_recorded(header.config),
            prompts=tuple(
                _prompt(event, step, aborts.get(name)) for name, (step, event) in added.items()
            ),
            sampled={name: tuple(tokens) for name, tokens in sampled.items()},
            steps=steps,
            has_pieces=has_pieces,
        )


def _prompt(event: RequestAdded, step: int, abort_step: int | None) -> Prompt:
    return Prompt(
        request=event.request,
        prompt_tokens=event.prompt_tokens,
        max_new_tokens=event.max_new_tokens,
        tenant=event.tenant,
        session=event.session,
        external_id=event.external_id,
        passphrase=event.passphrase,
        arrival_step=step,
        abort_step=abort_step,
        ignore_eos=bool((event.sampling or {}).get("ignore_eos")),
    )
